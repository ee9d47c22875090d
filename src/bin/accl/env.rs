//! `accl env`: every setting, its value, and who has set it.

use accl_core::config::{Origin, Source, mistakes};
use serde::Serialize;

#[derive(Debug, Serialize)]
struct Settings {
    settings: Vec<Line>,
    /// What is set and has no effect here.
    without_effect: Vec<Foreign>,
    /// What would be refused.
    errors: Vec<String>,
    /// What looks like a mistake.
    warnings: Vec<String>,
}

#[derive(Debug, Serialize)]
struct Line {
    name: &'static str,
    value: String,
    default: &'static str,
    origin: Who,
    help: &'static str,
}

/// A name that NCCL or PCCL knows and this library does not use.
#[derive(Debug, Serialize)]
struct Foreign {
    name: String,
    value: String,
    origin: Who,
}

/// Who has set a value.
#[derive(Debug, Serialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
enum Who {
    Default,
    Environment { variable: String },
    File { variable: String, file: String, line: usize },
}

impl From<Origin> for Who {
    fn from(origin: Origin) -> Self {
        match origin {
            Origin::Default => Self::Default,
            Origin::Environment(variable) => Self::Environment { variable },
            Origin::File { path, line, name } => Self::File { variable: name, file: path, line },
        }
    }
}

impl std::fmt::Display for Who {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Default => formatter.write_str("default"),
            Self::Environment { variable } => write!(formatter, "{variable} in the environment"),
            Self::File { variable, file, line } => write!(formatter, "{variable} in {file}:{line}"),
        }
    }
}

/// Prints the settings; false if a value would be refused.
pub(crate) fn run(json: bool) -> Result<bool, String> {
    let source = Source::of_process().map_err(|error| error.text().to_string())?;
    let (errors, warnings) = mistakes(&source);
    let lines = source.all().map(|(setting, value, origin)| Line {
        name: setting.name,
        value,
        default: setting.default,
        origin: origin.into(),
        help: setting.help,
    });
    let foreign =
        |(name, value, origin): (String, String, Origin)| Foreign { name, value, origin: origin.into() };
    let without_effect = source.without_effect().into_iter().map(foreign).collect();
    let all = Settings { settings: lines.collect(), without_effect, errors, warnings };
    if json {
        println!("{}", serde_json::to_string_pretty(&all).map_err(|error| error.to_string())?);
    } else {
        print(&all);
    }
    Ok(all.errors.is_empty())
}

fn print(all: &Settings) {
    let shown = |line: &Line| match (&line.origin, line.value.as_str()) {
        (Who::Default, "") => "unset".to_string(),
        (_, value) => value.to_string(),
    };
    let longest = |width: &dyn Fn(&Line) -> usize| all.settings.iter().map(width).max().unwrap_or(0);
    let foreign = all.without_effect.iter().map(|line| line.name.len()).max().unwrap_or(0);
    let names = longest(&|line| line.name.len()).max(foreign);
    // A long value is no reason to push all origins to the right.
    let values = longest(&|line| shown(line).chars().count()).min(24);
    for line in &all.settings {
        println!("{:names$}  {:values$}  {}", line.name, shown(line), line.origin);
    }
    for line in &all.without_effect {
        println!("{:names$}  {:values$}  {} (accepted, no effect here)", line.name, line.value, line.origin);
    }
    for (kind, texts) in [("error", &all.errors), ("warning", &all.warnings)] {
        texts.iter().for_each(|text| println!("{kind}: {text}"));
    }
}
