//! Ranks the nodes of a directed graph: how far each is from nodes without dependencies.

/// One more than the highest rank among the dependencies of each node; 0 without any. An edge that
/// closes a cycle does not count.
pub(super) fn ranks(needs: &[Vec<usize>]) -> Vec<usize> {
    #[derive(Clone, Copy, PartialEq)]
    enum Mark {
        New,
        Open,
        Done,
    }
    let mut rank = vec![0; needs.len()];
    let mut mark = vec![Mark::New; needs.len()];
    let mut stack: Vec<(usize, usize)> = Vec::new();
    for start in 0..needs.len() {
        if mark[start] == Mark::New {
            stack.push((start, 0));
        }
        while let Some((index, next)) = stack.pop() {
            mark[index] = Mark::Open;
            match needs[index].get(next) {
                Some(&other) => {
                    stack.push((index, next + 1));
                    if mark[other] == Mark::New {
                        stack.push((other, 0));
                    }
                }
                None => {
                    let done = needs[index].iter().filter(|other| mark[**other] == Mark::Done);
                    rank[index] = done.map(|other| rank[*other] + 1).max().unwrap_or(0);
                    mark[index] = Mark::Done;
                }
            }
        }
    }
    rank
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_is_one_more_than_the_highest_dependency() {
        assert_eq!(ranks(&[vec![], vec![0], vec![0, 1], vec![]]), [0, 1, 2, 0]);
    }

    #[test]
    fn cycles_and_self_dependencies_end() {
        assert_eq!(ranks(&[vec![0]]), [0]);
        let found = ranks(&[vec![1], vec![2], vec![0]]);
        assert_eq!(found.iter().max(), Some(&2));
    }

    #[test]
    fn a_long_chain_does_not_overflow_the_stack() {
        let chain: Vec<Vec<usize>> =
            (0..100_000).map(|index: usize| index.checked_sub(1).into_iter().collect()).collect();
        assert_eq!(ranks(&chain).last(), Some(&99_999));
    }
}
