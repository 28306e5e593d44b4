//! What was measured, as a table and as JSON.

use serde_json::{Value, json};

/// Which of two figures is the better one.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Better {
    /// A time, a cost: the ratio is theirs by ours, of the medians.
    Less,
    /// A speed: the ratio is ours by theirs, the median over the rounds.
    More,
}

/// One comparison: a figure of ours and of somebody else in every round.
pub struct Row {
    /// What was measured.
    pub what: String,
    /// In what.
    pub unit: &'static str,
    /// Ours, round by round.
    pub ours: Vec<f64>,
    /// Who else.
    pub rival: &'static str,
    /// Theirs, round by round.
    pub theirs: Vec<f64>,
    /// How the ratio is to be read.
    pub better: Better,
    /// What is wanted, for a person.
    pub aim: &'static str,
}

impl Row {
    fn ratio(&self) -> f64 {
        match self.better {
            Better::Less => median(&self.theirs) / median(&self.ours),
            Better::More => {
                let pairs = self.ours.iter().zip(&self.theirs);
                median(
                    &pairs
                        .map(|(ours, theirs)| ours / theirs)
                        .collect::<Vec<f64>>(),
                )
            }
        }
    }

    /// The bad end of nine in ten: the slow one, whichever way the figure goes.
    fn p90(&self, figures: &[f64]) -> f64 {
        match self.better {
            Better::Less => quantile(figures, 0.9),
            Better::More => quantile(figures, 0.1),
        }
    }
}

/// The value below which this share of the figures lies, between neighbours in proportion; not a number for none.
pub fn quantile(figures: &[f64], share: f64) -> f64 {
    let mut sorted = figures.to_vec();
    sorted.sort_by(f64::total_cmp);
    let Some(last) = sorted.len().checked_sub(1) else {
        return f64::NAN;
    };
    let place = share * last as f64;
    let (low, high) = (
        sorted[place.floor() as usize],
        sorted[place.ceil() as usize],
    );
    low + (high - low) * place.fract()
}

/// The middle.
pub fn median(figures: &[f64]) -> f64 {
    quantile(figures, 0.5)
}

/// Cores, memory and the like, from the kernel.
fn machine() -> (usize, f64, String) {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let read = |path| std::fs::read_to_string(path).unwrap_or_default();
    let field = |text: &str, name: &str| {
        let line = text.lines().find(|line| line.starts_with(name))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    let memory = field(&read("/proc/meminfo"), "MemTotal");
    let memory = memory.and_then(|text| text.split(' ').next()?.parse::<f64>().ok());
    let model = field(&read("/proc/cpuinfo"), "model name").unwrap_or_else(|| "unknown".into());
    (cores, memory.unwrap_or(0.0) / 1024.0 / 1024.0, model)
}

/// Prints it for people.
pub fn print(rows: &[Row]) {
    let (cores, memory, model) = machine();
    println!("{cores} cores ({model}), {memory:.0} GiB; servers, members and readers all on them");
    println!(
        "times and costs: ratio = other / ours; speeds: ratio = ours / other, median of the rounds; p90 is the bad end\n"
    );
    let width = rows.iter().map(|row| row.what.len()).max().unwrap_or(0);
    println!(
        "{:width$}  {:10} {:>3} {:>9} {:>9}  {:22} {:>3} {:>9} {:>9}  {:>6}  aim",
        "", "unit", "n", "ours", "p90", "other", "n", "median", "p90", "ratio"
    );
    for row in rows {
        println!(
            "{:width$}  {:10} {:>3} {:>9} {:>9}  {:22} {:>3} {:>9} {:>9}  {:>6.2}  {}",
            row.what,
            row.unit,
            row.ours.len(),
            short(median(&row.ours)),
            short(row.p90(&row.ours)),
            row.rival,
            row.theirs.len(),
            short(median(&row.theirs)),
            short(row.p90(&row.theirs)),
            row.ratio(),
            row.aim,
        );
    }
}

fn short(figure: f64) -> String {
    if figure.is_nan() {
        "-".into()
    } else if figure >= 100.0 {
        format!("{figure:.0}")
    } else if figure >= 1.0 {
        format!("{figure:.1}")
    } else {
        format!("{figure:.4}")
    }
}

/// The same for programs, with every single figure.
pub fn json(rows: &[Row]) -> Value {
    let (cores, memory, model) = machine();
    let side = |row: &Row, figures: &[f64]| {
        json!({
            "n": figures.len(),
            "median": median(figures),
            "p90": row.p90(figures),
            "all": figures,
        })
    };
    let one = |row: &Row| {
        json!({
            "what": row.what,
            "unit": row.unit,
            "ours": side(row, &row.ours),
            "rival": row.rival,
            "theirs": side(row, &row.theirs),
            "ratio": row.ratio(),
            "aim": row.aim,
        })
    };
    json!({
        "machine": { "cores": cores, "memory_gib": memory, "model": model },
        "rows": rows.iter().map(one).collect::<Vec<Value>>(),
    })
}
