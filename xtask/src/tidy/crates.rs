//! Which crate may use which: the direction of dependencies, as docs/architecture.md draws it.

use serde_json::Value;

use super::Findings;
use crate::run::{Outcome, cargo, output};

const TESTKIT: &str = "belay-testkit";

/// Every crate of ours, and those of ours that it may use.
const ALLOWED: &[(&str, &[&str])] = &[
    ("belay-model", &[]),
    ("belay-protocol", &[]),
    ("belay-record", &["belay-model", "belay-protocol"]),
    ("belay-os", &[]),
    ("belay-journal", &[]),
    ("belay-shell", &[]),
    ("belay-shim", &["belay-model", "belay-protocol", "belay-record", "belay-os"]),
    (
        "belay-daemon",
        &["belay-model", "belay-protocol", "belay-record", "belay-journal", "belay-os", "belay-shell"],
    ),
    ("belay-client", &["belay-protocol"]),
    ("belay-cli", &["belay-client", "belay-protocol"]),
    // It simulates a world around the real cores, so it may see them all; no product code may see it.
    (
        TESTKIT,
        &[
            "belay-client",
            "belay-daemon",
            "belay-journal",
            "belay-model",
            "belay-os",
            "belay-protocol",
            "belay-record",
            "belay-shim",
        ],
    ),
    ("belay", &["belay-cli", "belay-daemon", "belay-shim"]),
    ("xtask", &["belay-client", "belay-protocol", "belay-os", "belay-model"]),
];

pub(crate) fn check(findings: &mut Findings) -> Outcome {
    let text = output(&mut cargo(&["metadata", "--no-deps", "--format-version", "1", "--offline"]))?;
    let metadata: Value = serde_json::from_str(&text)?;
    for package in metadata["packages"].as_array().into_iter().flatten() {
        check_package(package, findings);
    }
    Ok(())
}

fn check_package(package: &Value, findings: &mut Findings) {
    let name = package["name"].as_str().unwrap_or_default();
    let Some((_, allowed)) = ALLOWED.iter().find(|(known, _)| *known == name) else {
        findings.say(format!("{name}: say in xtask/src/tidy/crates.rs which crates of ours it may use"));
        return;
    };
    for dependency in package["dependencies"].as_array().into_iter().flatten() {
        let used = dependency["name"].as_str().unwrap_or_default();
        let ours = ALLOWED.iter().any(|(known, _)| *known == used) || used.starts_with("belay-");
        let for_tests = dependency["kind"] == "dev";
        if !ours || (allowed.contains(&used) && used != TESTKIT) {
            continue;
        }
        if used == TESTKIT && !for_tests {
            findings.say(format!("{name}: {TESTKIT} is for tests only: make it a dev-dependency"));
        } else if !for_tests {
            findings.say(format!(
                "{name} must not use {used}: see the direction of dependencies in docs/architecture.md"
            ));
        } else if used != TESTKIT && name != "belay" {
            // The whole product is tested from its root package, which sees everything; a crate tests itself.
            findings.say(format!("{name}: tests that need {used} belong to the root package"));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn findings(name: &str, used: &str, kind: Option<&str>) -> Vec<String> {
        let mut findings = Findings::default();
        let package = json!({"name": name, "dependencies": [{"name": used, "kind": kind}]});
        check_package(&package, &mut findings);
        findings.0
    }

    #[test]
    fn the_direction_is_kept() {
        assert!(findings("belay-cli", "belay-client", None).is_empty());
        assert!(findings("belay-cli", "serde", None).is_empty());
        assert!(findings("belay-daemon", "belay-testkit", Some("dev")).is_empty());
        assert!(findings("belay", "belay-client", Some("dev")).is_empty());
        assert!(findings("belay-cli", "belay-os", None)[0].contains("must not use belay-os"));
        assert!(findings("belay-model", "belay-protocol", None)[0].contains("must not use"));
        assert!(findings("belay-cli", "belay-testkit", None)[0].contains("for tests only"));
        assert!(findings("belay-new", "serde", None)[0].contains("say in xtask"));
    }
}
