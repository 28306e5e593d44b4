//! stub
use crate::output::Outcome;
use clap::Args;
/// stub
#[derive(Args)]
pub struct Demo {}
impl Demo {
    pub async fn run(&self) -> Outcome {
        Ok(())
    }
}
