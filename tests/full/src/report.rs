//! A bench's table, its goals, and its file in target/bench.

use serde_json::json;

/// The measurements, in the order in which they were taken.
#[derive(Debug, Default)]
pub struct Report {
    figures: Vec<(String, f64, &'static str)>,
    goals: Vec<Goal>,
}

#[derive(Debug)]
struct Goal {
    name: String,
    value: f64,
    goal: String,
    met: bool,
}

impl Report {
    /// Prints and records a figure.
    pub fn figure(&mut self, name: &str, value: f64, unit: &'static str) {
        println!("  {name:<58} {:>12} {unit}", shown(value));
        self.record(name, value, unit);
    }

    /// Records a figure that is printed elsewhere.
    pub fn record(&mut self, name: &str, value: f64, unit: &'static str) {
        self.figures.push((name.to_owned(), value, unit));
    }

    /// Records a goal that is met by `goal` or more.
    pub fn at_least(&mut self, name: &str, value: f64, goal: f64) {
        self.goal(name, value, format!(">= {goal}"), value >= goal);
    }

    /// Records a goal that is met by `goal` or less.
    pub fn at_most(&mut self, name: &str, value: f64, goal: f64) {
        self.goal(name, value, format!("<= {goal}"), value <= goal);
    }

    fn goal(&mut self, name: &str, value: f64, goal: String, met: bool) {
        self.goals.push(Goal {
            name: name.to_owned(),
            value,
            goal,
            met,
        });
    }

    /// Prints the goals and writes `target/bench/NAME.json`.
    ///
    /// # Panics
    /// It cannot be written.
    pub fn finish(&self, name: &str) {
        println!("\ngoals");
        for goal in &self.goals {
            let met = if goal.met { "met" } else { "NOT MET" };
            println!(
                "  {:<58} {:>12} {:<10} {met}",
                goal.name,
                shown(goal.value),
                goal.goal
            );
        }
        let figures: Vec<_> = self
            .figures
            .iter()
            .map(|(name, value, unit)| json!({"name": name, "value": value, "unit": unit}))
            .collect();
        let goals: Vec<_> = self
            .goals
            .iter()
            .map(|g| json!({"name": g.name, "value": g.value, "goal": g.goal, "met": g.met}))
            .collect();
        let folder = sluicegate_tests::process::repository("target/bench");
        let path = folder.join(format!("{name}.json"));
        let text = json!({"figures": figures, "goals": goals});
        let text = serde_json::to_string_pretty(&text).expect("plain numbers");
        std::fs::create_dir_all(&folder).expect("a folder under target");
        std::fs::write(&path, text).expect("a file under target");
        println!("\nwritten to target/bench/{name}.json");
    }
}

/// Rounds to three significant digits.
fn shown(value: f64) -> String {
    if value >= 1_000.0 {
        let whole = format!("{:.0}", value);
        let mut grouped = String::new();
        for (index, digit) in whole.chars().enumerate() {
            if index > 0 && (whole.len() - index).is_multiple_of(3) {
                grouped.push(',');
            }
            grouped.push(digit);
        }
        grouped
    } else if value >= 100.0 {
        format!("{value:.0}")
    } else {
        format!("{value:.2}")
    }
}
