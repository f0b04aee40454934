//! An index of the core: which rows belong to a key. Empty keys are dropped, so that it is as large as what it holds.

use std::borrow::Borrow;
use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;

#[derive(Debug)]
pub(crate) struct Index<K, V> {
    rows: HashMap<K, BTreeSet<V>>,
}

impl<K, V> Default for Index<K, V> {
    fn default() -> Self {
        Self { rows: HashMap::new() }
    }
}

impl<K: Hash + Eq, V: Ord> Index<K, V> {
    pub(crate) fn add(&mut self, key: K, row: V) {
        self.rows.entry(key).or_default().insert(row);
    }

    pub(crate) fn remove<Q, R>(&mut self, key: &Q, row: &R)
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
        V: Borrow<R>,
        R: Ord + ?Sized,
    {
        if let Some(rows) = self.rows.get_mut(key) {
            rows.remove(row);
            if rows.is_empty() {
                self.rows.remove(key);
            }
        }
    }

    /// Takes all rows of a key out.
    pub(crate) fn take<Q: Hash + Eq + ?Sized>(&mut self, key: &Q) -> BTreeSet<V>
    where
        K: Borrow<Q>,
    {
        self.rows.remove(key).unwrap_or_default()
    }

    /// The rows of a key, in order.
    pub(crate) fn of<'a, Q: Hash + Eq + ?Sized>(
        &'a self,
        key: &Q,
    ) -> impl Iterator<Item = &'a V> + use<'a, K, V, Q>
    where
        K: Borrow<Q>,
    {
        self.rows.get(key).into_iter().flatten()
    }

    pub(crate) fn count<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> usize
    where
        K: Borrow<Q>,
    {
        self.rows.get(key).map_or(0, BTreeSet::len)
    }
}
