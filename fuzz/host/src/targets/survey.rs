//! Device trees of boards that somebody imports: whatever a file has, it is shown or refused.

use bulkhead_model::survey::Survey;

use super::description;
use bulkhead_fuzz::Target;

/// This target.
pub const TARGET: Target = Target {
    name: "survey",
    seeds,
    words: &[
        "arm,gic-v3",
        "arm,gic-400",
        "#iommu-cells\0",
        "next-level-cache\0",
        "cpu-map\0",
        "stdout-path\0",
        "\0\0\0\x01",
        "\0\0\0\x02",
        "\0\0\0\x03",
        "\0\0\0\x04",
        "\x7f\0\0\0",
    ],
    run,
};

fn seeds() -> Vec<Vec<u8>> {
    let planned = description::seed_plans();
    planned
        .iter()
        .take(1)
        .map(|planned| planned.board.dtb.clone())
        .collect()
}

fn run(bytes: &[u8]) {
    match Survey::read(bytes.to_vec()) {
        Ok(survey) => assert!(survey.text(true).lines().count() > 5),
        Err(why) => assert!(!why.is_empty() && !why.contains('\n'), "{why}"),
    }
}
