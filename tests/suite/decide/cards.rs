//! The project's own `JOB-SAFETY.md`: the kinds of every example, as they are really registered.

use onceward::testkit::{SimDisk, check_safety_file};
use onceward::{Builder, Jobs, SafetyCards};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

#[allow(dead_code, reason = "only what is registered is looked at")]
#[path = "../../../examples/hello.rs"]
mod hello;
#[allow(dead_code, unfulfilled_lint_expectations, reason = "only what is registered is looked at")]
#[path = "../../../examples/notify.rs"]
pub(crate) mod notify;
// The demo itself needs a broker's client; its kinds do not.
#[allow(dead_code, reason = "only what is registered is looked at")]
#[path = "../../../examples/outgrow/kinds.rs"]
mod outgrow;
#[allow(dead_code, unfulfilled_lint_expectations, reason = "only what is registered is looked at")]
#[path = "../../../examples/shop/main.rs"]
pub(crate) mod the_shop;
#[allow(dead_code, unfulfilled_lint_expectations, reason = "only what is registered is looked at")]
#[path = "../../../examples/unemployment.rs"]
mod unemployment;

fn nowhere() -> Builder {
    Jobs::on_disk(Arc::new(SimDisk::new()))
}

/// The cards of every example, by its name. A new example is added here, and to nothing else.
fn examples() -> Vec<(&'static str, SafetyCards)> {
    vec![
        ("hello", hello::registered(nowhere()).safety_cards().unwrap()),
        ("notify", notify::registered(nowhere()).safety_cards().unwrap()),
        ("outgrow", outgrow::registered(nowhere()).safety_cards().unwrap()),
        ("shop", the_shop::registered(nowhere()).safety_cards().unwrap()),
        ("unemployment", unemployment::registered(nowhere()).safety_cards().unwrap()),
    ]
}

/// Somebody changes a policy, an effect's rule or a probe of an example, or adds an example: the committed page says so, or this
/// fails, shows the lines and says how to renew them.
#[test]
fn the_committed_safety_page_is_what_the_examples_register() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let all = examples();
    let known: BTreeSet<String> = all.iter().map(|(name, _)| (*name).to_owned()).collect();
    let there: BTreeSet<String> = std::fs::read_dir(root.join("examples"))
        .unwrap()
        .map(|e| e.unwrap().path())
        .filter(|p| p.extension().is_some_and(|e| e == "rs") || p.join("main.rs").exists())
        .map(|p: PathBuf| p.file_stem().unwrap().to_string_lossy().into_owned())
        .collect();
    assert_eq!(known, there, "each example has its cards in this test");
    let cards = all.into_iter().fold(SafetyCards::default(), |sum, (_, cards)| sum.and(cards));
    println!("safety cards: {} kinds of {} examples", cards.iter().count(), known.len());
    assert!(cards.iter().count() >= known.len());
    check_safety_file(root.join("JOB-SAFETY.md"), &cards).unwrap();
}

/// A stale file fails with the lines that differ, under their kind, and with the way to renew it; the same cards render the same
/// bytes in whatever order the kinds were registered.
#[test]
fn a_stale_safety_page_fails_with_its_difference() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("JOB-SAFETY.md");
    let cards = examples().into_iter().fold(SafetyCards::default(), |sum, (_, cards)| cards.and(sum));
    let again = examples().into_iter().fold(SafetyCards::default(), |sum, (_, cards)| sum.and(cards));
    assert_eq!(cards.to_string(), again.to_string(), "sorted");
    // Written by hand: the variable that writes it belongs to the whole process.
    let committed = cards.to_string().replace("5 retries: 6 attempts **(widened)**", "3 retries: 4 attempts");
    assert_ne!(committed, cards.to_string());
    std::fs::write(&path, &committed).unwrap();
    if std::env::var_os(onceward::testkit::BLESS).is_none() {
        let stale = check_safety_file(&path, &cards).unwrap_err().to_string();
        assert!(
            stale.contains("ONCEWARD_BLESS=1") && stale.contains("  ## complete-order (widened)\n- | Retries"),
            "{stale}"
        );
        assert_eq!(stale.lines().filter(|l| l.starts_with("+ ")).count(), 1, "{stale}");
        std::fs::write(&path, cards.to_string().replace('\n', "\r\n")).unwrap();
        check_safety_file(&path, &cards).unwrap();
        std::fs::remove_file(&path).unwrap();
        let missing = check_safety_file(&path, &cards).unwrap_err().to_string();
        assert!(missing.contains("+ ## greet"), "{missing}");
    }
}

/// A setup that would be refused at start has no cards: they would promise what cannot run.
#[test]
fn a_setup_that_is_refused_has_no_cards() {
    use super::super::rig::World;
    use super::super::rig::order::{Ask, Order, Probed};
    let lacking = World::new().builder().on(|_, _: Order<Ask, Probed>| Ok(()));
    assert!(matches!(lacking.safety_cards(), Err(onceward::Error::Setup(_))));
}

/// A running queue shows the same cards as the builder it came from.
#[test]
fn a_running_queue_shows_its_cards() {
    let before = hello::registered(nowhere()).safety_cards().unwrap();
    let jobs = hello::registered(nowhere()).start().unwrap();
    assert_eq!(jobs.safety_cards(), before);
    jobs.shutdown(super::super::rig::PATIENCE).unwrap();
}
