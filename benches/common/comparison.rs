//! Two reports of one benchmark side by side: [`comparison`].

use comfy_table::{Cell, CellAlignment, Table, presets};

use super::figure::{Figure, number, text};
use super::report::Report;
use super::spread::Spread;

/// Each figure now beside that of an earlier report, and how they relate. Where there is a baseline, the ratios
/// to it are compared, too: what else the machines did touches the baselines of both.
pub fn comparison(earlier: &Report, now: &Report) -> Table {
    let mut table = Table::new();
    let header = [
        "case",
        "figure",
        "unit",
        "earlier",
        "now",
        "now / earlier",
        "to baseline",
        "earlier",
        "now",
        "now / earlier",
    ];
    table.load_preset(presets::NOTHING).set_header(header);
    for figure in now.figures() {
        let before = earlier.figures().iter().find(|e| e.key() == figure.key());
        table.add_row(cells(before, figure));
    }
    table
}

fn cells(before: Option<&Figure>, now: &Figure) -> Vec<Cell> {
    let right = |text: String| Cell::new(text).set_alignment(CellAlignment::Right);
    let ratio = |figure: &Figure| figure.against.as_ref().map(|against| against.ratio);
    let (value_before, ratio_before) = (before.map(|b| b.value), before.and_then(ratio));
    let mut cells = vec![
        Cell::new(&now.case),
        Cell::new(&now.figure),
        Cell::new(&now.unit),
        right(value_before.map(text).unwrap_or_default()),
        right(text(now.value)),
        right(change(value_before, Some(now.value))),
    ];
    if let Some(against) = &now.against {
        cells.extend([
            Cell::new(&against.baseline),
            right(ratio_before.map(text).unwrap_or_default()),
            right(text(against.ratio)),
            right(change(ratio_before, Some(against.ratio))),
        ]);
    }
    cells
}

/// Ratio of the medians, where there are two.
fn change(before: Option<Spread>, now: Option<Spread>) -> String {
    match (before, now) {
        (Some(before), Some(now)) if before.median != 0.0 => number(now.median / before.median),
        _ => String::new(),
    }
}
