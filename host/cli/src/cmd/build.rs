//! `bulkhead build`: one bootable image of a description.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::{Value, json};

use bulkhead_model::failure::{Failure, Outcome};
use bulkhead_planner::image::fit;
use bulkhead_planner::show;
use bulkhead_runner::build::{Built, build_in};
use bulkhead_runner::temp_files;

/// Build the image of a system, with everything that it needs
#[derive(clap::Args)]
#[command(after_help = "Examples:
  bulkhead build systems/demo.toml
  bulkhead build systems/demo.toml --json | jq -r .image
  bulkhead build systems/demo.toml --fit demo.itb   # for U-Boot's bootm, see docs/how-to/boot.md

Writes out/NAME/: bulkhead.img (boots as an arm64 Linux image does), plan.bin, plan.json, VM.dtb of
each VM, el2.elf. Same inputs, same bytes. NAME is that of the description; out/ is in the checkout for
descriptions there, else beside the description.")]
pub struct Args {
    /// The description
    file: PathBuf,
    /// Write into this folder, instead of out/NAME
    #[arg(short, long, value_name = "DIR")]
    output: Option<PathBuf>,
    /// Write a FIT, too: the image and the board's device tree with their sums, for U-Boot's bootm
    #[arg(long, value_name = "FILE")]
    fit: Option<PathBuf>,
    /// Leave room in the FIT for signatures by this key, which `mkimage -F` makes
    #[arg(long, value_name = "NAME", requires = "fit")]
    fit_key: Option<String>,
    /// Print what was built as JSON
    #[arg(long)]
    json: bool,
}

/// Output of `--json`.
#[derive(Serialize)]
struct Document<'a> {
    ok: bool,
    image: &'a Path,
    el2: &'a Path,
    fit: Option<&'a Path>,
    plan: Value,
}

/// Writes a FIT of what was built.
fn write_fit(built: &Built, file: &Path, key: Option<&str>) -> Result<(), Failure> {
    let trouble = |why: std::io::Error| {
        Failure::environment(
            format!("cannot write {}", file.display()),
            why,
            "name a file in a folder that exists and that you may write to, with --fit FILE",
        )
    };
    let image = fs::read(&built.image).map_err(trouble)?;
    temp_files::write(file, &fit::of(&built.planned, &image, key)).map_err(trouble)
}

/// Runs the verb.
pub fn run(args: Args) -> Outcome {
    let built = build_in(&args.file, args.output.as_deref()).and_then(|built| {
        if let Some(file) = &args.fit {
            write_fit(&built, file, args.fit_key.as_deref())?;
        }
        Ok(built)
    });
    match built {
        Ok(built) if args.json => {
            let document = Document {
                ok: true,
                image: &built.image,
                el2: &built.el2,
                fit: args.fit.as_deref(),
                plan: show::json(&built.planned),
            };
            println!("{:#}", json!(document));
            Outcome::Done
        }
        Ok(built) => {
            let size = fs::metadata(&built.image).map_or(0, |data| data.len());
            println!("{} ({} KiB)", built.image.display(), size / 1024);
            if let Some(file) = args.fit {
                let image = &built.planned.image;
                let behind = image.base + image.size;
                println!(
                    "{} (read it to {behind:#x} or above, then bootm)",
                    file.display()
                );
            }
            Outcome::Done
        }
        Err(stopped) => stopped.report(args.json),
    }
}
