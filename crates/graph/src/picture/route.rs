//! Routes lines through the space between boxes.
//!
//! Between two columns of the grid is a channel, between two rows a lane; neither holds a box. A line
//! leaves the right side of a dependency, runs along channels, lanes and free cells, and ends at the
//! left side of the dependent. All lines of one dependency share their way as far as it goes, so that
//! they look like one tree; lines of different dependencies get tracks of their own.
//!
//! Always holds: no line crosses a box or the title of a band.

use std::collections::{BTreeMap, HashMap};

use super::place::{Cell, Grid};

/// A track: the channel or lane, and the number of the track in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Track {
    pub(super) way: usize,
    pub(super) number: usize,
}

/// The way of a line from a dependent to a dependency.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Route {
    /// Both are in one row with free cells between them.
    Straight,
    /// Along the row of the dependency, one channel, along the row of the dependent.
    Channel(Track),
    /// As `Channel`, but both ends are on the right side of one column.
    Side(Track),
    /// From the dependency by a channel, a lane, and a channel to the dependent.
    Lane { out: Track, lane: Track, back: Track },
}

/// All routes, and how many tracks each channel and lane has.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Routes {
    pub(super) routes: Vec<Route>,
    /// Where each line ends at the dependent: steps above (negative) or below the middle.
    pub(super) ports: Vec<i32>,
    /// Channel `n` is left of column `n`.
    pub(super) channels: Vec<usize>,
    /// Lane `n` is above row `n`.
    pub(super) lanes: Vec<usize>,
}

pub(super) fn route(grid: &Grid, links: &[(usize, usize)]) -> Routes {
    let mut cells = Cells::new(grid);
    let mut channels = Ways::new(grid.columns + 1);
    let mut lanes = Ways::new(grid.rows + 1);
    // Short lines first: they take the free cells, long ones go around.
    let mut order: Vec<usize> = (0..links.len()).collect();
    order.sort_by_key(|link| {
        let (from, to) = links[*link];
        let (from, to) = (grid.cells[from], grid.cells[to]);
        (from.column.abs_diff(to.column), from.row.abs_diff(to.row), *link)
    });
    let mut routes = vec![Route::Straight; links.len()];
    for link in order {
        let (from, to) = links[link];
        let way = cells.choose(from, to, grid.cells[from], grid.cells[to]);
        routes[link] = way;
        let (start, end) = (middle(grid.cells[to].row), middle(grid.cells[from].row));
        match way {
            Route::Straight => {}
            Route::Channel(track) | Route::Side(track) => channels.take(track.way, to, start, end),
            Route::Lane { out, lane, back } => {
                channels.take(out.way, to, start, 2 * lane.way);
                lanes.take(lane.way, to, 2 * out.way, 2 * back.way);
                channels.take(back.way, to, 2 * lane.way, end);
            }
        }
    }
    let (channel_of, channels) = channels.number();
    let (lane_of, lanes) = lanes.number();
    for (route, (_, to)) in routes.iter_mut().zip(links) {
        let number = |found: &Numbers, track: &mut Track| {
            track.number = found.get(&(track.way, *to)).copied().unwrap_or(0);
        };
        match route {
            Route::Straight => {}
            Route::Channel(track) | Route::Side(track) => number(&channel_of, track),
            Route::Lane { out, lane, back } => {
                number(&channel_of, out);
                number(&lane_of, lane);
                number(&channel_of, back);
            }
        }
    }
    let ports = ports(grid, links, &routes);
    Routes { routes, ports, channels, lanes }
}

/// The middle of a row, in the unit in which lane `n` is at `2n`.
fn middle(row: usize) -> usize {
    2 * row + 1
}

/// The number of the track of each dependency in each channel or lane.
type Numbers = HashMap<(usize, usize), usize>;

/// Which cells hold a box or a title, and which are passed by lines.
struct Cells {
    columns: usize,
    full: Vec<bool>,
    /// The box whose lines pass a free cell.
    passed: HashMap<(usize, usize), usize>,
}

impl Cells {
    fn new(grid: &Grid) -> Self {
        let mut full = vec![false; grid.columns * grid.rows];
        for cell in &grid.cells {
            full[cell.row * grid.columns + cell.column] = true;
        }
        for block in &grid.blocks {
            let start = block.row * grid.columns + block.column;
            full.get_mut(start..start + block.columns).into_iter().for_each(|row| row.fill(true));
        }
        Self { columns: grid.columns, full, passed: HashMap::new() }
    }

    /// Reserves the cells of a row for the lines of a box; false if one is not free.
    fn pass(&mut self, row: usize, columns: std::ops::Range<usize>, owner: usize) -> bool {
        let is_free = |column: usize| {
            !self.full[row * self.columns + column]
                && self.passed.get(&(row, column)).is_none_or(|known| *known == owner)
        };
        if !columns.clone().all(is_free) {
            return false;
        }
        self.passed.extend(columns.map(|column| ((row, column), owner)));
        true
    }

    fn choose(&mut self, from: usize, to: usize, dependent: Cell, dependency: Cell) -> Route {
        let track = |way: usize| Track { way, number: 0 };
        let (left, right) = (dependency.column + 1, dependent.column);
        if dependency.column == dependent.column && from != to {
            return Route::Side(track(left));
        }
        if left <= right {
            if dependency.row == dependent.row && self.pass(dependency.row, left..right, to) {
                return Route::Straight;
            }
            if self.pass(dependency.row, left..right, to) {
                return Route::Channel(track(right));
            }
            if self.pass(dependent.row, left..right, from) {
                return Route::Channel(track(left));
            }
        }
        // Above or below the dependency, on the side of the dependent.
        let lane = dependency.row + usize::from(dependent.row > dependency.row);
        Route::Lane { out: track(left), lane: track(lane), back: track(right) }
    }
}

/// The parts of channels or lanes that are taken, by channel or lane and dependency.
struct Ways {
    count: usize,
    taken: BTreeMap<(usize, usize), (usize, usize)>,
}

impl Ways {
    fn new(count: usize) -> Self {
        Self { count, taken: BTreeMap::new() }
    }

    fn take(&mut self, way: usize, owner: usize, start: usize, end: usize) {
        let (low, high) = (start.min(end), start.max(end));
        let taken = self.taken.entry((way, owner)).or_insert((low, high));
        *taken = (taken.0.min(low), taken.1.max(high));
    }

    /// Gives each part a track, so that no two parts on one track touch. Returns the tracks and their
    /// number in each channel or lane.
    fn number(self) -> (Numbers, Vec<usize>) {
        let mut parts: Vec<Vec<((usize, usize), usize)>> = vec![Vec::new(); self.count];
        for ((way, owner), part) in self.taken {
            parts[way].push((part, owner));
        }
        let mut numbers = Numbers::new();
        let mut counts = Vec::with_capacity(self.count);
        for (way, mut parts) in parts.into_iter().enumerate() {
            parts.sort_unstable();
            let mut ends: Vec<usize> = Vec::new();
            for ((start, end), owner) in parts {
                let number = ends.iter().position(|last| *last < start).unwrap_or(ends.len());
                if number == ends.len() {
                    ends.push(end);
                }
                ends[number] = end;
                numbers.insert((way, owner), number);
            }
            counts.push(ends.len());
        }
        (numbers, counts)
    }
}

/// Spreads the lines of a dependent over its side: those from above end in the upper half, those from
/// below in the lower one, one in the same row in the middle.
fn ports(grid: &Grid, links: &[(usize, usize)], routes: &[Route]) -> Vec<i32> {
    let mut order: Vec<usize> = (0..links.len()).collect();
    order.sort_by_key(|link| (links[*link].0, links[*link].1));
    let mut ports = vec![0; links.len()];
    let mut last: Option<(usize, usize)> = None;
    let (mut above, mut below, mut port) = (0, 0, 0);
    for link in order {
        let (from, to) = links[link];
        if last.is_none_or(|(dependent, _)| dependent != from) {
            (above, below) = (0, 0);
        }
        // Lines of several kinds between the same boxes share a port.
        if last != Some((from, to)) {
            port = match routes[link] {
                Route::Straight => 0,
                _ if grid.cells[to].row <= grid.cells[from].row => {
                    above += 1;
                    -above
                }
                _ => {
                    below += 1;
                    below
                }
            };
        }
        last = Some((from, to));
        ports[link] = port;
    }
    ports
}
