//! Statistics of a run: a name, a value, a unit and a sentence for each, as JSON or as text like gem5's.

use serde::Serialize;

/// One figure.
#[derive(Clone, Debug, Serialize)]
pub struct Statistic {
    /// Dotted name.
    pub name: String,
    /// Its value.
    pub value: f64,
    /// Its unit.
    pub unit: &'static str,
    /// What it counts.
    pub description: &'static str,
}

/// All figures of a run, in order.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Statistics {
    /// The figures.
    pub statistics: Vec<Statistic>,
}

impl Statistics {
    /// Adds a figure.
    pub fn push(&mut self, name: impl Into<String>, value: f64, unit: &'static str, description: &'static str) {
        self.statistics.push(Statistic { name: name.into(), value, unit, description });
    }

    /// The value of a figure by its name.
    pub fn get(&self, name: &str) -> Option<f64> {
        self.statistics.iter().find(|s| s.name == name).map(|s| s.value)
    }

    /// One JSON object.
    pub fn json(&self) -> String {
        // Numbers and strings always serialise.
        serde_json::to_string_pretty(self).unwrap_or_default()
    }

    /// Lines of name, value and description.
    pub fn text(&self) -> String {
        let mut text = String::from("---------- Begin Simulation Statistics ----------\n");
        for s in &self.statistics {
            text += &format!("{:<40} {:>20} # {} ({})\n", s.name, s.value, s.description, s.unit);
        }
        text + "---------- End Simulation Statistics   ----------\n"
    }
}
