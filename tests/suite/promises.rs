//! `docs/promises.md` names a test for each promise; here those tests are looked for, so that the page cannot outlive them.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Somebody renames a test, and the page that names it goes on promising: this fails instead.
#[test]
fn every_promise_names_tests_that_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = fs::read_to_string(root.join("docs/promises.md")).unwrap();
    let named: BTreeSet<&str> =
        page.lines().filter(|l| l.starts_with('|')).flat_map(|l| l.split('`').skip(1).step_by(2)).collect();
    let mut tests = BTreeSet::new();
    for folder in ["tests", "src"] {
        collect(&root.join(folder), &mut tests);
    }
    let missing: Vec<_> = named.iter().filter(|n| !tests.contains(**n)).collect();
    println!("promises: {} tests named, {} tests found in the sources", named.len(), tests.len());
    assert!(named.len() > 20, "the page names tests");
    assert!(missing.is_empty(), "docs/promises.md names tests that do not exist: {missing:?}");
}

/// Somebody renames a metric in the docs' exporter, and the rules go on watching one that is not there: this fails instead. Each rule
/// says what to do.
#[test]
fn every_rule_uses_metrics_that_are_exported() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |file: &str| fs::read_to_string(root.join(file)).unwrap();
    let (rules, page) = (read("prometheus/rules.yml"), read("docs/alerts.md"));
    let (mut names, mut used) = (BTreeSet::new(), 0);
    let words = |text: &str| -> Vec<String> {
        let own = text.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|w| w.contains('_'));
        own.filter(|w| w.starts_with("job_") || w.starts_with("compensation_")).map(str::to_owned).collect()
    };
    for expr in rules.lines().filter_map(|l| l.trim().strip_prefix("expr:")) {
        used += 1;
        names.extend(words(expr));
    }
    let exported: BTreeSet<String> = page.split("```").skip(1).step_by(2).flat_map(words).collect();
    let base = |n: &str| n.trim_end_matches("_bucket").trim_end_matches("_count").trim_end_matches("_sum").to_owned();
    let missing: Vec<_> = names.iter().filter(|n| !exported.contains(*n) && !exported.contains(&base(n))).collect();
    println!("prometheus: {used} rules use {} metrics, {} are exported", names.len(), exported.len());
    assert!(used > 10 && names.len() > 10, "the rules name metrics");
    assert!(missing.is_empty(), "prometheus/rules.yml uses metrics that docs/alerts.md does not export: {missing:?}");
    assert_eq!(rules.matches("next: ").count(), used, "a rule does not say what to do next");
}

fn collect(folder: &Path, into: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(&path, into);
        } else if path.extension().is_some_and(|e| e == "rs") {
            let text = fs::read_to_string(&path).unwrap();
            let mut is_test = false;
            for line in text.lines().map(str::trim) {
                if let Some(rest) = line.strip_prefix("fn ")
                    && is_test
                {
                    into.insert(rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect());
                }
                is_test = line == "#[test]" || is_test && line.starts_with("#[");
            }
        }
    }
}
