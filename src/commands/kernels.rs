//! Reports on compiled modules (`--kernels`): as text or JSON on standard output, and as a page.

use super::Error;
use super::output_file::check_output;
use serde_json::json;
use std::path::Path;
use xtrain_checkpoint::named::write_named_bytes;
use xtrain_config::Flags;
use xtrain_engine::failed;
use xtrain_report::kernels::{KernelReport, page};
use xtrain_report::{errln, out, outln};

/// Refuses a page that cannot be written, before the work whose result it is to hold.
pub(super) fn check(flags: &Flags) -> Result<(), Error> {
    match &*flags.html {
        Some(path) => check_output("--html", path),
        None => Ok(()),
    }
}

/// Prints the reports as the flags say.
pub(super) fn print(reports: &[KernelReport], flags: &Flags) -> Result<(), Error> {
    if *flags.json {
        let graphs: Vec<_> = reports.iter().map(KernelReport::json).collect();
        outln!("{}", json!({ "graphs": graphs }));
    } else {
        reports
            .iter()
            .for_each(|report| out!("\n{}", report.text()));
    }
    write(reports, flags.html.as_deref())
}

fn write(reports: &[KernelReport], path: Option<&Path>) -> Result<(), Error> {
    let Some(path) = path else { return Ok(()) };
    let html = page::html(reports);
    write_named_bytes(path, html.as_bytes()).map_err(failed("writing the report"))?;
    errln!("written: {}", path.display());
    Ok(())
}
