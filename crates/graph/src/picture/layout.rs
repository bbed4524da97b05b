//! Computes the coordinates of boxes, bands and lines.

use super::place::{Block, Cell, Grid, Plan, column_widths, place};
use super::route::{Route, Routes, Track, route};

pub(super) const BOX_HEIGHT: f64 = 28.0;
/// The width of a letter in a box.
pub(super) const LETTER: f64 = 7.3;
/// The space between the rows of boxes, and that which each further track adds.
const LANE: f64 = 13.0;
const TRACK: f64 = 5.0;
/// The space between columns of boxes, with and without lines.
const CHANNEL: f64 = 50.0;
const EMPTY_CHANNEL: f64 = 30.0;
/// The space beside the tracks of a channel: for the frames of bands and the heads of arrows.
const MARGIN: f64 = 24.0;
/// The space between a box and the frame of its band.
const PADDING: f64 = 12.0;
/// The distance between lines that end at one box.
const PORT: f64 = 3.5;

#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Rect {
    pub(super) x: f64,
    pub(super) y: f64,
    pub(super) width: f64,
    pub(super) height: f64,
}

impl Rect {
    fn middle(&self) -> f64 {
        self.y + self.height / 2.0
    }

    fn right(&self) -> f64 {
        self.x + self.width
    }
}

pub(super) type Point = (f64, f64);

#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Layout {
    pub(super) boxes: Vec<Rect>,
    pub(super) bands: Vec<Rect>,
    /// The corners of each line, from the dependent to the dependency.
    pub(super) lines: Vec<Vec<Point>>,
    pub(super) width: f64,
    pub(super) height: f64,
}

/// Computes the layout of a picture whose left upper corner is at 0, 0. The same plan always gets the
/// same layout.
pub(super) fn layout(plan: &Plan) -> Layout {
    let grid = place(plan);
    let routes = route(&grid, &plan.links);
    let axes = Axes::new(plan, &grid, &routes);
    let boxes: Vec<Rect> = grid.cells.iter().map(|cell| axes.cell(*cell)).collect();
    let lines = plan.links.iter().enumerate().map(|(link, (from, to))| {
        let port = f64::from(routes.ports[link]) * PORT;
        axes.line(&routes.routes[link], &boxes[*from], &boxes[*to], port)
    });
    let lines = lines.collect();
    let bands = grid.blocks.iter().map(|block| axes.block(*block)).collect();
    Layout { boxes, bands, lines, width: axes.width, height: axes.height }
}

/// The places of columns, rows, channels and lanes.
struct Axes {
    columns: Vec<(f64, f64)>,
    rows: Vec<f64>,
    /// The place of the first track, and the distance of the next.
    channels: Vec<(f64, f64)>,
    lanes: Vec<(f64, f64)>,
    width: f64,
    height: f64,
}

impl Axes {
    fn new(plan: &Plan, grid: &Grid, routes: &Routes) -> Self {
        let widths = column_widths(plan, grid);
        let mut edges = vec![false; grid.columns + 1];
        for block in &grid.blocks {
            edges[block.column] = true;
            edges[block.column + block.columns] = true;
        }
        let mut axes = Self {
            columns: Vec::new(),
            rows: Vec::new(),
            channels: Vec::new(),
            lanes: Vec::new(),
            width: 0.0,
            height: 0.0,
        };
        for (channel, tracks) in routes.channels.iter().copied().enumerate() {
            let breadth = match tracks {
                0 if edges[channel] => CHANNEL - 8.0,
                0 => EMPTY_CHANNEL,
                _ => CHANNEL.max(2.0 * MARGIN + TRACK * (tracks - 1) as f64),
            };
            let taken = TRACK * tracks.saturating_sub(1) as f64;
            axes.channels.push((axes.width + (breadth - taken) / 2.0, TRACK));
            axes.width += breadth;
            if let Some(width) = widths.get(channel) {
                axes.columns.push((axes.width, *width));
                axes.width += width;
            }
        }
        for (lane, tracks) in routes.lanes.iter().copied().enumerate() {
            let taken = TRACK * tracks.saturating_sub(1) as f64;
            let breadth = LANE.max(taken + 8.0);
            axes.lanes.push((axes.height + (breadth - taken) / 2.0, TRACK));
            axes.height += breadth;
            if lane < grid.rows {
                axes.rows.push(axes.height);
                axes.height += BOX_HEIGHT;
            }
        }
        axes
    }

    fn cell(&self, cell: Cell) -> Rect {
        let (x, width) = self.columns[cell.column];
        Rect { x, y: self.rows[cell.row], width, height: BOX_HEIGHT }
    }

    /// The frame of a band; one without boxes has none.
    fn block(&self, block: Block) -> Rect {
        if block.columns == 0 {
            return Rect::default();
        }
        let (columns, rows) = (block.columns.saturating_sub(1), block.rows.saturating_sub(1));
        let first = self.cell(Cell { column: block.column, row: block.row });
        let last = self.cell(Cell { column: block.column + columns, row: block.row + rows });
        let (x, y) = (first.x - PADDING, first.y + 5.0);
        let bottom = last.y + BOX_HEIGHT + PADDING - 3.0;
        Rect { x, y, width: last.right() + PADDING - x, height: bottom - y }
    }

    fn channel(&self, track: Track) -> f64 {
        let (first, step) = self.channels[track.way];
        first + step * track.number as f64
    }

    fn lane(&self, track: Track) -> f64 {
        let (first, step) = self.lanes[track.way];
        first + step * track.number as f64
    }

    /// The corners of a line from a dependent to a dependency.
    fn line(&self, route: &Route, from: &Rect, to: &Rect, port: f64) -> Vec<Point> {
        let start = from.middle() + port.clamp(3.0 - BOX_HEIGHT / 2.0, BOX_HEIGHT / 2.0 - 3.0);
        let end = to.middle();
        match route {
            Route::Straight => vec![(from.x, end), (to.right(), end)],
            Route::Channel(track) => {
                let x = self.channel(*track);
                vec![(from.x, start), (x, start), (x, end), (to.right(), end)]
            }
            Route::Side(track) => {
                let x = self.channel(*track);
                vec![(from.right(), start), (x, start), (x, end), (to.right(), end)]
            }
            Route::Lane { out, lane, back } => {
                let (x, y, near) = (self.channel(*back), self.lane(*lane), self.channel(*out));
                let ends = [(from.x, start), (x, start), (x, y), (near, y), (near, end)];
                ends.into_iter().chain([(to.right(), end)]).collect()
            }
        }
    }
}
