//! A table of the core: an ordered map whose visited rows a test can count, to prove that a step does not look at all rows
//! because one of them changed.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::ops::RangeBounds;

#[derive(Debug)]
pub(crate) struct Table<K, V> {
    rows: BTreeMap<K, V>,
}

impl<K, V> Default for Table<K, V> {
    fn default() -> Self {
        Self { rows: BTreeMap::new() }
    }
}

impl<K: Ord, V> Table<K, V> {
    pub(crate) fn len(&self) -> usize {
        self.rows.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    pub(crate) fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        visit();
        self.rows.get(key)
    }

    pub(crate) fn get_mut<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<&mut V>
    where
        K: Borrow<Q>,
    {
        visit();
        self.rows.get_mut(key)
    }

    pub(crate) fn contains_key<Q: Ord + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        visit();
        self.rows.contains_key(key)
    }

    pub(crate) fn insert(&mut self, key: K, value: V) -> Option<V> {
        visit();
        self.rows.insert(key, value)
    }

    pub(crate) fn remove<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        visit();
        self.rows.remove(key)
    }

    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = (&K, &V)> {
        self.rows.iter().inspect(|_| visit())
    }

    pub(crate) fn keys(&self) -> impl DoubleEndedIterator<Item = &K> {
        self.rows.keys().inspect(|_| visit())
    }

    pub(crate) fn values(&self) -> impl DoubleEndedIterator<Item = &V> {
        self.rows.values().inspect(|_| visit())
    }

    pub(crate) fn range<R: RangeBounds<K>>(&self, range: R) -> impl DoubleEndedIterator<Item = (&K, &V)> {
        self.rows.range(range).inspect(|_| visit())
    }
}

#[cfg(not(test))]
const fn visit() {}

#[cfg(test)]
fn visit() {
    VISITED.with(|visited| visited.set(visited.get() + 1));
}

#[cfg(test)]
std::thread_local! {
    static VISITED: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// How many rows of all tables this thread has visited so far.
#[cfg(test)]
pub(crate) fn visited() -> u64 {
    VISITED.with(std::cell::Cell::get)
}
