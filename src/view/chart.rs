//! Charts as SVG, drawn by the same code for pages and reports. Colours are classes of the style sheet, so that a chart
//! follows the reader's light or dark theme.

use maud::{Markup, html};

use super::html::text;
use crate::show::{number, visible_lines};

/// Width and height of a chart, and the room around its plot, in pixels.
const WIDTH: f64 = 480.0;
const HEIGHT: f64 = 220.0;
const LEFT: f64 = 56.0;
const RIGHT: f64 = 12.0;
const TOP: f64 = 10.0;
const BOTTOM: f64 = 34.0;

/// Series that have a colour of their own.
pub(super) const COLORS: usize = 8;

/// Writes a value beside an axis.
pub(super) type Label = fn(f64) -> String;

/// A number without zeros at its end.
pub(super) fn short(value: f64) -> String {
    let text = number(value);
    if !text.contains('.') || text.contains('e') {
        return text;
    }
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// What a chart shows, and how its axes are labelled.
pub(super) struct Chart {
    /// What it shows, for its caption.
    pub title: String,
    /// What the horizontal axis shows.
    pub x_title: &'static str,
    /// Writes a value of the horizontal axis.
    pub x_label: Label,
    /// Writes a value of the vertical axis.
    pub y_label: Label,
}

/// A line, with a band around it where its values are uncertain.
#[derive(Default)]
pub(super) struct Line {
    /// Its name in the legend.
    pub name: String,
    /// Its points, from left to right.
    pub points: Vec<(f64, f64)>,
    /// For some x, the lowest and the highest likely value.
    pub band: Vec<(f64, f64, f64)>,
}

/// A bar of stacked counts.
pub(super) struct Bar {
    /// Where it begins.
    pub from: f64,
    /// Where it ends.
    pub to: f64,
    /// The count of each series.
    pub counts: Vec<f64>,
}

/// A point with a place to go to.
pub(super) struct Dot {
    /// Where it is.
    pub at: (f64, f64),
    /// What it is.
    pub title: String,
    /// Its page.
    pub link: Option<String>,
}

/// A stretch of time in a waterfall.
pub(super) struct Stretch {
    /// What it is.
    pub name: String,
    /// What it says when pointed at.
    pub title: String,
    /// Where it begins, in milliseconds.
    pub from: f64,
    /// Its parts, one after another: their lengths in milliseconds, and their classes.
    pub parts: Vec<(f64, &'static str)>,
}

/// A linear map from values to pixels.
#[derive(Clone, Copy)]
struct Scale {
    from: f64,
    to: f64,
    start: f64,
    end: f64,
}

impl Scale {
    fn new((from, to): (f64, f64), (start, end): (f64, f64)) -> Self {
        let to = if to > from { to } else { from + 1.0 };
        Self {
            from,
            to,
            start,
            end,
        }
    }

    fn at(&self, value: f64) -> f64 {
        let share = (value - self.from) / (self.to - self.from);
        let place = self.start + share.clamp(-1.0, 2.0) * (self.end - self.start);
        (place * 10.0).round() / 10.0
    }

    /// About `wanted` round values within the scale.
    fn ticks(&self, wanted: f64) -> Vec<f64> {
        let rough = (self.to - self.from) / wanted;
        let power = 10_f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0]
            .map(|factor| factor * power)
            .into_iter()
            .find(|step| *step >= rough * 0.999);
        let step = step.unwrap_or(rough);
        let first = (self.from / step - 1e-9).ceil();
        let ticks = (0..).map(|n| (first + f64::from(n)) * step);
        ticks
            .take_while(|tick| *tick <= self.to + step * 1e-6)
            .take(30)
            .collect()
    }
}

/// The least and the largest of the values; `None` if there are none.
pub(super) fn range(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    let finite = values.filter(|value| value.is_finite());
    finite.fold(None, |range, value| match range {
        None => Some((value, value)),
        Some((low, high)) => Some((value.min(low), value.max(high))),
    })
}

impl Chart {
    /// Lines over the same axes. `y` is the range that they have at least.
    pub(super) fn lines(&self, lines: &[Line], y: Option<(f64, f64)>) -> Markup {
        let all = || lines.iter().flat_map(|line| line.points.iter().copied());
        let bands = lines.iter().flat_map(|line| &line.band);
        let bands = bands.flat_map(|(_, low, high)| [*low, *high]);
        let given = y.into_iter().flat_map(|(low, high)| [low, high]);
        let heights = all().map(|(_, y)| y).chain(bands).chain(given);
        let (Some(x), Some(y)) = (range(all().map(|(x, _)| x)), range(heights)) else {
            return html! {};
        };
        let (x, y) = (self.x(x), self.y(y));
        let path = |points: &[(f64, f64)]| -> String {
            let pairs = points.iter().filter(|(_, height)| height.is_finite());
            let pairs = pairs.map(|(along, height)| format!("{},{}", x.at(*along), y.at(*height)));
            pairs.collect::<Vec<_>>().join(" ")
        };
        let marks = html! {
            @for (number, line) in lines.iter().enumerate() {
                @let color = number % COLORS;
                @if !line.band.is_empty() {
                    @let there = line.band.iter().map(|(along, low, _)| (*along, *low));
                    @let back = line.band.iter().rev().map(|(along, _, high)| (*along, *high));
                    polygon class={ "band s" (color) } points=(path(&there.chain(back).collect::<Vec<_>>())) {}
                }
                polyline class={ "line s" (color) } points=(path(&line.points)) {}
                @if line.points.len() <= 40 {
                    @for (along, height) in line.points.iter().filter(|(_, height)| height.is_finite()) {
                        circle class={ "dot s" (color) } cx=(x.at(*along)) cy=(y.at(*height)) r="2.5" {
                            title { (text(&line.name)) " at " ((self.x_label)(*along)) ": " ((self.y_label)(*height)) }
                        }
                    }
                }
            }
        };
        let names: Vec<&str> = lines.iter().map(|line| line.name.as_str()).collect();
        self.figure(x, y, &marks, &names)
    }

    /// Stacked bars. `names` are those of the counts.
    pub(super) fn bars(&self, bars: &[Bar], names: &[&str]) -> Markup {
        let ends = bars.iter().flat_map(|bar| [bar.from, bar.to]);
        let tops = bars.iter().map(|bar| bar.counts.iter().sum());
        let (Some(x), Some((_, top))) = (range(ends), range(tops)) else {
            return html! {};
        };
        let (x, y) = (self.x(x), self.y((0.0, top)));
        let marks = html! {
            @for bar in bars {
                @let (left, right) = (x.at(bar.from), x.at(bar.to));
                @let ends = bar.counts.iter().scan(0.0, |sum, count| { *sum += count; Some(*sum) });
                @for (number, (count, end)) in bar.counts.iter().zip(ends).enumerate() {
                    @if *count > 0.0 {
                        @let (low, high) = (y.at(end - count), y.at(end));
                        rect class={ "bar s" (number % COLORS) } x=(left + 0.5) y=(high)
                            width=(tenth((right - left - 1.0).max(0.5))) height=(tenth((low - high).max(0.5))) {
                            title {
                                ((self.x_label)(bar.from)) " to " ((self.x_label)(bar.to))
                                @if let Some(name) = names.get(number) { ", " (text(name)) }
                                ": " ((self.y_label)(*count))
                            }
                        }
                    }
                }
            }
        };
        self.figure(x, y, &marks, names)
    }

    /// Points, above and below the line on which both values are the same.
    pub(super) fn scatter(&self, dots: &[Dot], y_title: &str) -> Markup {
        let values = dots.iter().flat_map(|dot| [dot.at.0, dot.at.1]);
        let Some((low, high)) = range(values) else {
            return html! {};
        };
        let (x, y) = (self.x((low, high)), self.y((low, high)));
        let marks = html! {
            line class="diagonal" x1=(x.at(low)) y1=(y.at(low)) x2=(x.at(high)) y2=(y.at(high)) {}
            @for dot in dots {
                a href=[&dot.link] {
                    circle class={ "dot " (if dot.at.1 > dot.at.0 { "better" } else if dot.at.1 < dot.at.0 { "worse" } else { "same" }) }
                        cx=(x.at(dot.at.0)) cy=(y.at(dot.at.1)) r="3.5" { title { (dot.title) } }
                }
            }
            text class="axis" transform={ "translate(12 " ((TOP + HEIGHT - BOTTOM) / 2.0) ") rotate(-90)" } text-anchor="middle" { (y_title) }
        };
        self.figure(x, y, &marks, &[])
    }

    fn x(&self, range: (f64, f64)) -> Scale {
        Scale::new(range, (LEFT, WIDTH - RIGHT))
    }

    fn y(&self, (low, high): (f64, f64)) -> Scale {
        let above = if high > low { (high - low) * 0.04 } else { 0.0 };
        Scale::new((low, high + above), (HEIGHT - BOTTOM, TOP))
    }

    fn figure(&self, x: Scale, y: Scale, marks: &Markup, names: &[&str]) -> Markup {
        html! {
            figure class="chart" {
                figcaption {
                    (text(&self.title))
                    (legend(names))
                }
                svg viewBox={ "0 0 " (WIDTH) " " (HEIGHT) } role="img" aria-label=(visible_lines(&self.title)) {
                    @for tick in y.ticks(4.0) {
                        line class="grid" x1=(LEFT) x2=(WIDTH - RIGHT) y1=(y.at(tick)) y2=(y.at(tick)) {}
                        text class="axis" x=(LEFT - 6.0) y=(y.at(tick) + 3.5) text-anchor="end" { ((self.y_label)(tick)) }
                    }
                    @for tick in x.ticks(6.0) {
                        text class="axis" x=(x.at(tick)) y=(HEIGHT - BOTTOM + 15.0) text-anchor="middle" { ((self.x_label)(tick)) }
                    }
                    line class="base" x1=(LEFT) x2=(WIDTH - RIGHT) y1=(HEIGHT - BOTTOM) y2=(HEIGHT - BOTTOM) {}
                    text class="axis" x=((LEFT + WIDTH - RIGHT) / 2.0) y=(HEIGHT - 4.0) text-anchor="middle" { (self.x_title) }
                    (marks)
                }
            }
        }
    }
}

fn legend(names: &[&str]) -> Markup {
    html! {
        @if names.len() > 1 {
            span class="legend" {
                @for (number, name) in names.iter().enumerate() {
                    " " span class="entry" { span class={ "key s" (number % COLORS) } {} " " (text(name)) }
                }
            }
        }
    }
}

fn tenth(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

/// A cell of a heat map.
pub(super) struct Cell {
    /// Its row and its column.
    pub at: (usize, usize),
    /// Its class: `h0` to `h9` from the lowest to the highest value, or the name of a state.
    pub class: String,
    /// What it says when pointed at.
    pub title: String,
    /// Its page.
    pub link: Option<String>,
}

/// Cells in rows and columns; `rows` names the rows.
pub(super) fn heat_map(title: &str, rows: &[(String, Option<String>)], cells: &[Cell]) -> Markup {
    const SIZE: f64 = 12.0;
    let columns = cells.iter().map(|cell| cell.at.1 + 1).max().unwrap_or(0);
    let place = |number: usize| number as f64 * SIZE;
    let (width, height) = (LEFT + place(columns) + 2.0, place(rows.len()) + 2.0);
    html! {
        figure class="chart heat" {
            figcaption {
                (title)
                span class="legend" {
                    " lowest "
                    @for shade in 0..10 { span class={ "key h" (shade) } {} }
                    " highest " span class="key failed" {} " failed " span class="key pending" {} " pending"
                }
            }
            svg viewBox={ "0 0 " (width) " " (height) } width=(width) height=(height) role="img" aria-label=(title) {
                @for (number, (name, link)) in rows.iter().enumerate() {
                    a href=[link] {
                        text class="axis" x=(LEFT - 6.0) y=(place(number) + 10.0) text-anchor="end" { (name) }
                    }
                }
                @for cell in cells {
                    a href=[&cell.link] {
                        rect class={ "cell " (cell.class) } x=(LEFT + place(cell.at.1)) y=(place(cell.at.0))
                            width="11" height="11" { title { (cell.title) } }
                    }
                }
            }
        }
    }
}

/// Stretches of time below each other.
pub(super) fn waterfall(title: &str, stretches: &[Stretch]) -> Markup {
    const ROW: f64 = 18.0;
    const NAMES: f64 = 120.0;
    const TIMES: f64 = 70.0;
    let width = 640.0;
    let length = |stretch: &Stretch| stretch.parts.iter().map(|(length, _)| length).sum::<f64>();
    let ends = stretches
        .iter()
        .flat_map(|stretch| [stretch.from, stretch.from + length(stretch)]);
    let Some(x) = range(ends) else {
        return html! {};
    };
    let x = Scale::new(x, (NAMES, width - TIMES));
    let height = ROW * stretches.len() as f64 + 4.0;
    html! {
        figure class="chart wide" {
            figcaption { (title) }
            svg viewBox={ "0 0 " (width) " " (height) } role="img" aria-label=(title) {
                @for (row, stretch) in stretches.iter().enumerate() {
                    @let top = row as f64 * ROW + 2.0;
                    text class="axis" x="0" y=(top + 11.0) { (stretch.name) }
                    @let begins = stretch.parts.iter().scan(stretch.from, |at, (length, _)| { let begin = *at; *at += length; Some(begin) });
                    @for ((length, class), begin) in stretch.parts.iter().zip(begins) {
                        @let (left, right) = (x.at(begin), x.at(begin + length));
                        rect class={ "stretch " (class) } x=(left) y=(top) width=(tenth((right - left).max(1.0))) height="13" {
                            title { (text(&stretch.title)) }
                        }
                    }
                    text class="axis" x=(x.at(stretch.from + length(stretch)) + 4.0) y=(top + 11.0) { (short(length(stretch).round())) " ms" }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_within_the_scale() {
        let ticks = |from, to| Scale::new((from, to), (0.0, 100.0)).ticks(4.0);
        assert_eq!(ticks(0.0, 1.0), [0.0, 0.5, 1.0]);
        assert_eq!(ticks(3.0, 17.0), [5.0, 10.0, 15.0]);
        assert_eq!(ticks(2.0, 2.0), [2.0, 2.5, 3.0]);
    }

    #[test]
    fn a_chart_without_values_is_not_drawn() {
        let chart = Chart {
            title: "t".into(),
            x_title: "x",
            x_label: short,
            y_label: short,
        };
        assert_eq!(chart.lines(&[], None).into_string(), "");
        assert_eq!(chart.bars(&[], &[]).into_string(), "");
        let line = Line {
            name: "<b>".into(),
            points: vec![(1.0, f64::NAN), (2.0, 3.0)],
            band: Vec::new(),
        };
        let drawn = chart.lines(&[line], None).into_string();
        assert!(
            drawn.contains("&lt;b&gt;") && !drawn.contains("NaN"),
            "{drawn}"
        );
    }
}
