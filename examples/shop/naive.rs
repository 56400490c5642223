//! The shop as it is often written: try again until it works, and write down what is done.

use super::Child;
use super::client::CallError;
use super::crash::Crash;
use super::plan::Point;
use std::error::Error;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

pub(crate) fn run(child: &Child) -> Result<(), Box<dyn Error>> {
    let crash = Crash::new(&child.plan, &child.dir);
    let (paid, done) = (child.dir.join("paid"), child.dir.join("done"));
    println!("opened 0");
    for order in &child.plan.orders {
        let n = order.number;
        if !contains(&done, n) {
            if !contains(&paid, n) {
                retry(|| child.outside.charge(n, order.cents, None))?;
                crash.at(Point::Charged, n);
                crash.at(Point::MarkPaid, n);
                append(&paid, n)?;
            }
            retry(|| child.outside.reserve(n))?;
            crash.at(Point::Reserved, n);
            if order.express {
                retry(|| child.outside.book_courier(n))?;
            }
            crash.at(Point::Finish, n);
            retry(|| child.outside.send_receipt(n, &order.mail))?;
            crash.at(Point::Mailed, n);
            append(&done, n)?;
        }
        println!("state {n} done");
    }
    Ok(())
}

/// Any error may pass: try again.
fn retry(call: impl Fn() -> Result<String, CallError>) -> Result<String, CallError> {
    for _ in 0..4 {
        if let Ok(id) = call() {
            return Ok(id);
        }
        std::thread::sleep(Duration::from_millis(30));
    }
    call()
}

fn append(file: &Path, order: u64) -> std::io::Result<()> {
    let mut file = OpenOptions::new().create(true).append(true).open(file)?;
    writeln!(file, "{order}")?;
    file.sync_data()
}

fn contains(file: &Path, order: u64) -> bool {
    std::fs::read_to_string(file).unwrap_or_default().lines().any(|l| l.parse() == Ok(order))
}
