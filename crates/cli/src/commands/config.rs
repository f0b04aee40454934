//! `belay config`: the settings, where each comes from, and changing them. The daemon reads and writes the file.

use belay_protocol::config::{
    ConfigApplies, ConfigGetParams, ConfigGetResult, ConfigItem, ConfigSetParams, ConfigSetResult,
    ConfigSource,
};
use belay_protocol::methods::{ConfigGet, ConfigSet};
use serde_json::{Value, json};

use crate::args::{ConfigAction, ConfigArgs};
use crate::context::Context;
use crate::error::CliError;
use crate::ui::style::Style;
use crate::ui::table::{Cell, Column, Table};
use crate::ui::text::one_line;

pub(crate) fn run(args: &ConfigArgs, context: &mut Context) -> Result<u8, CliError> {
    match &args.action {
        None => all(args.json, context),
        Some(ConfigAction::Get { key }) => get(key, args.json, context),
        Some(ConfigAction::Set { key, value }) => set(key, value.clone().into(), args.json, context),
        Some(ConfigAction::Unset { key }) => set(key, Value::Null, args.json, context),
        Some(ConfigAction::Path) => path(args.json, context),
    }
}

fn all(json: bool, context: &mut Context) -> Result<u8, CliError> {
    let found = context.connect()?.call::<ConfigGet>(&ConfigGetParams::default())?;
    if json {
        context.out.json(&found)?;
    } else {
        context.out.text(&render(&found, context.term.width, context.term.colour_out))?;
    }
    warn(&found, context);
    Ok(0)
}

fn get(key: &str, json: bool, context: &mut Context) -> Result<u8, CliError> {
    let found = context.connect()?.call::<ConfigGet>(&ConfigGetParams { key: Some(key.to_owned()) })?;
    let Some(item) = found.items.first() else { return Ok(1) };
    if json {
        context.out.json(item)?;
    } else if item.value.is_null() {
        context.hint(&format!("{key} is not set"));
    } else {
        context.out.line(&shown(&item.value))?;
    }
    warn(&found, context);
    // For scripts: a setting that has no value is no answer.
    Ok(u8::from(item.value.is_null()))
}

fn set(key: &str, value: Value, json: bool, context: &mut Context) -> Result<u8, CliError> {
    let params = ConfigSetParams { key: key.to_owned(), value };
    let done = context.connect()?.call::<ConfigSet>(&params)?;
    if json {
        context.out.json(&done)?;
    } else {
        context.out.text(&sentence(&done))?;
    }
    Ok(0)
}

fn path(json: bool, context: &mut Context) -> Result<u8, CliError> {
    let path = context.paths()?.config_file();
    if json {
        context.out.json(&json!({ "path": path.display().to_string(), "exists": path.exists() }))?;
    } else {
        context.out.line(&path.display().to_string())?;
    }
    Ok(0)
}

fn warn(found: &ConfigGetResult, context: &Context) {
    if let Some(problem) = &found.problem {
        context.note(&format!("The file is wrong, and the values from before count: {problem}"));
    }
}

pub(crate) fn render(found: &ConfigGetResult, width: Option<usize>, colour: bool) -> String {
    let mut table = Table::new(vec![
        Column::new("KEY"),
        Column::new("VALUE").flexible(12),
        Column::new("SOURCE").flexible(8),
    ]);
    for item in &found.items {
        let style = if item.source == ConfigSource::Default { Style::Dim } else { Style::Plain };
        table.row(vec![
            Cell::new(&item.key),
            Cell::new(&shown(&item.value)).style(style),
            Cell::new(&source(item)).style(style),
        ]);
    }
    table.render(width, colour)
}

fn source(item: &ConfigItem) -> String {
    let place = match &item.source {
        ConfigSource::Default => "default".to_owned(),
        ConfigSource::File { place } => place.clone(),
        ConfigSource::Env { variable } => format!("env {variable}"),
    };
    match &item.from_next_start {
        Some(next) => format!("{place} ({} from the next start of the daemon)", shown(next)),
        None => place,
    }
}

/// A value as `belay config set` takes it.
fn shown(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

pub(crate) fn sentence(done: &ConfigSetResult) -> String {
    let item = &done.item;
    let value = shown(item.from_next_start.as_ref().unwrap_or(&item.value));
    let text = match done.counts {
        ConfigApplies::Now if item.value.is_null() => format!("{} is not set from now on", item.key),
        ConfigApplies::Now => format!("{} is {value} from now on", item.key),
        ConfigApplies::NextStart if item.from_next_start.is_none() => format!("{} is {value}", item.key),
        ConfigApplies::NextStart => {
            format!("{} is {value} from the next start of the daemon on: belay down, belay up", item.key)
        }
        ConfigApplies::Overridden => {
            let variable = match &item.source {
                ConfigSource::Env { variable } => variable.as_str(),
                ConfigSource::File { place } => place.as_str(),
                ConfigSource::Default => "default",
            };
            format!(
                "The file is changed, but {} stays {value}: {variable} of the daemon counts before it",
                item.key
            )
        }
    };
    format!("{}.\n", one_line(&text))
}
