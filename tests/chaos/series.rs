//! Whether figures that are taken again and again grow.

/// One figure over time.
pub struct Series {
    /// Growth up to this is none.
    floor: f64,
    /// Seconds and values.
    points: Vec<(f64, f64)>,
}

/// The last two thirds of a series.
pub struct Trend {
    pub mean: f64,
    pub most: f64,
    /// By the line that fits best.
    pub per_hour: f64,
    /// Three times the error of that.
    pub error: f64,
    /// How long it is.
    pub hours: f64,
}

/// One percent of growth in an hour is too much.
const LIMIT: f64 = 0.01;
/// Growth from each of so many parts to the next is growth also if no line fits.
const PARTS: usize = 6;

impl Series {
    /// An empty one, of whose growth so much is none.
    pub fn new(floor: f64) -> Self {
        Self {
            floor,
            points: Vec::new(),
        }
    }

    /// One more.
    pub fn add(&mut self, seconds: f64, value: f64) {
        self.points.push((seconds, value));
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.points.len()
    }

    /// Seconds and values.
    pub fn points(&self) -> &[(f64, f64)] {
        &self.points
    }

    /// Without what a process needs to get going.
    fn late(&self) -> &[(f64, f64)] {
        &self.points[self.points.len() / 3..]
    }

    /// How the last two thirds go.
    pub fn trend(&self) -> Trend {
        let late = self.late();
        let count = late.len().max(1) as f64;
        let mean = |of: &dyn Fn(&(f64, f64)) -> f64| late.iter().map(of).sum::<f64>() / count;
        let (middle, level) = (mean(&|(at, _)| *at), mean(&|(_, value)| *value));
        let spread = mean(&|(at, _)| (at - middle).powi(2)).max(1e-9);
        let slope = mean(&|(at, value)| (at - middle) * (value - level)) / spread;
        let rest = mean(&|(at, value)| (value - level - slope * (at - middle)).powi(2));
        let span = match (late.first(), late.last()) {
            (Some((first, _)), Some((last, _))) => last - first,
            _ => 0.0,
        };
        Trend {
            mean: level,
            most: late.iter().map(|(_, value)| *value).fold(0.0, f64::max),
            per_hour: slope * 3600.0,
            error: 3.0 * (rest / spread / count).sqrt() * 3600.0,
            hours: span / 3600.0,
        }
    }

    /// Why it grows, if it surely does.
    pub fn grows(&self) -> Option<String> {
        let trend = self.trend();
        let sure = trend.per_hour - trend.error;
        if sure > trend.mean * LIMIT && sure * trend.hours > self.floor {
            let (per_hour, error) = (trend.per_hour, trend.error);
            return Some(format!("{per_hour:.1} an hour, give or take {error:.1}"));
        }
        let late = self.late();
        let parts = late.chunks(late.len().div_ceil(PARTS).max(1));
        let means: Vec<f64> = parts
            .map(|part| part.iter().map(|(_, value)| value).sum::<f64>() / part.len() as f64)
            .collect();
        let is_monotone = means.len() == PARTS && means.windows(2).all(|two| two[0] < two[1]);
        let growth = means
            .last()
            .zip(means.first())
            .map(|(last, first)| last - first);
        let growth = growth.unwrap_or_default();
        (is_monotone && growth > self.floor)
            .then(|| format!("from each of {PARTS} parts to the next, {growth:.1} in all"))
    }
}

fn series(value: impl Fn(f64) -> f64) -> Series {
    let mut series = Series::new(10.0);
    for at in 0..720 {
        let at = f64::from(at) * 5.0;
        series.add(at, value(at));
    }
    series
}

#[test]
fn a_figure_that_grows_by_more_than_a_percent_an_hour_is_found() {
    // I18. The first third is not looked at.
    assert_eq!(series(|_| 1000.0).grows(), None);
    assert_eq!(
        series(|at| 1000.0 + 500.0 * f64::from(at < 1200.0)).grows(),
        None
    );
    assert_eq!(
        series(|at| 1000.0 - 500.0 * f64::from(at < 1200.0)).grows(),
        None
    );
    // As many as come go.
    assert_eq!(
        series(|at| 1000.0 + 200.0 * (at / 300.0).sin()).grows(),
        None
    );
    // Two percent an hour; half a percent; much for its size and little all the same.
    assert!(
        series(|at| 1000.0 + 20.0 * at / 3600.0 + 5.0 * at.sin())
            .grows()
            .is_some()
    );
    assert_eq!(series(|at| 1000.0 + 5.0 * at / 3600.0).grows(), None);
    assert_eq!(series(|at| 10.0 + 9.0 * at / 3600.0).grows(), None);
}

#[test]
fn a_figure_that_grows_from_part_to_part_is_found() {
    // I18. Less than a percent an hour.
    let steps = |at: f64| 10_000.0 + 15.0 * ((at - 1200.0) / 400.0).floor().max(0.0) / 5.0;
    assert!(series(steps).grows().is_some());
    assert_eq!(series(|at| steps(at).min(10_012.0)).grows(), None);
}
