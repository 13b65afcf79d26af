//! `sluicegate override list`: lists the overrides of the policy and the store.

use sluicegate_protocol::{
    ListedOverride, OVERRIDES_PATH, OverrideList, OverrideSource, OverrideState,
};

use super::Failure;
use super::admin::Admin;
use super::output::Output;
use super::stdout::line;

/// Arguments of `override list`.
#[derive(clap::Args)]
pub struct List {
    /// Show only the overrides of this limit.
    #[arg(long, value_name = "NAME")]
    limit: Option<String>,
    #[command(flatten)]
    admin: Admin,
    /// Output format; `json` prints the sidecar's answer.
    #[arg(long, short, value_enum, default_value_t)]
    output: Output,
}

impl List {
    pub async fn run(self) -> Result<(), Failure> {
        let mut list: OverrideList = self.admin.client()?.get(OVERRIDES_PATH).await?;
        if let Some(limit) = &self.limit {
            list.overrides.retain(|one| one.limit == *limit);
        }
        self.output.print(&list, text)
    }
}

/// A table for people.
fn text(list: &OverrideList) -> String {
    if list.overrides.is_empty() {
        return "no overrides\n".to_owned();
    }
    let titles = "LIMIT KEY SUBJECT ALLOWANCE UNTIL SOURCE STATE BY REASON".split(' ');
    let titles: Vec<_> = titles.map(str::to_owned).collect();
    let columns = titles.len();
    let mut rows = vec![titles];
    rows.extend(list.overrides.iter().map(row));
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<_> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in &rows {
        let cells = row.iter().zip(&widths);
        let cells = cells.map(|(cell, width)| format!("{cell:<width$}  "));
        line!(text, "{}", cells.collect::<String>().trim_end());
    }
    text
}

fn row(one: &ListedOverride) -> Vec<String> {
    let source = match one.source {
        OverrideSource::Policy => "policy",
        OverrideSource::Store => "store",
    };
    let state = match one.state {
        OverrideState::InForce => "in force",
        OverrideState::Restored => "in force (restored)",
        OverrideState::Returned => "returned, not in force",
        OverrideState::Ended => "ended",
        OverrideState::Hidden => "replaced by the store's",
        OverrideState::Unfit => "does not fit the policy",
    };
    let text = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
    vec![
        one.limit.clone(),
        match &one.key {
            // It may contain control characters, which a terminal would execute.
            Some(key) => key.escape_debug().to_string(),
            None if one.all_keys => "(all keys)".to_owned(),
            None => "-".to_owned(),
        },
        text(&one.subject),
        one.allowance(),
        text(&one.terms.until),
        source.to_owned(),
        state.to_owned(),
        text(&one.terms.by),
        text(&one.terms.reason),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_has_a_row_for_each_override_and_no_control_characters_of_keys() {
        let list = r#"{"overrides":[
            {"limit":"per-key","key":"a\u001b[2J","subject":"0123456789abcdef0123","unlimited":true,"source":"store","state":"in_force","by":"ann"},
            {"limit":"l","all_keys":true,"unlimited":true,"source":"policy","state":"in_force"},
            {"limit":"l","key":"c","quota":40,"at_once":true,"source":"store","state":"in_force"},
            {"limit":"l","subject":"ba9876543210ba987654","blocked":true,"source":"store","state":"in_force"},
            {"limit":"l","key":"b","subject":"ba987654321001234567","windows":[{"quota":5,"per":"1s"}],"until":"2026-11-22T03:00:00Z","source":"policy","state":"ended"}]}"#;
        let list = serde_json::from_str(list).unwrap();
        let lines: Vec<_> = text(&list).lines().map(str::to_owned).collect();
        assert_eq!(
            lines,
            [
                "LIMIT    KEY         SUBJECT               ALLOWANCE   UNTIL                 SOURCE  STATE     BY   REASON",
                "per-key  a\\u{1b}[2J  0123456789abcdef0123  unlimited   -                     store   in force  ann  -",
                "l        (all keys)  -                     unlimited   -                     policy  in force  -    -",
                "l        c           -                     40 at once  -                     store   in force  -    -",
                "l        -           ba9876543210ba987654  blocked     -                     store   in force  -    -",
                "l        b           ba987654321001234567  quota 5/1s  2026-11-22T03:00:00Z  policy  ended     -    -",
            ]
        );
    }
}
