//! The index workload file (bench/peers/index_workload.md) and the events and queries made from it.

use dynamo_kv_router::protocols::{
    ExternalSequenceBlockHash, KvCacheEvent, KvCacheEventData, KvCacheRemoveData, KvCacheStoreData,
    KvCacheStoredBlockData, LocalBlockHash, OverlapScores, RouterEvent,
};
use std::collections::HashMap;

const MAGIC: &[u8; 4] = b"ASHI";
const VERSION: u32 = 1;
const NAME_BYTES: usize = 24;

pub fn mix(mut z: u64) -> u64 {
    z = z.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// Blocks begin..end of a sequence are stored, or removed from the last to the first.
#[derive(Clone, Copy)]
pub struct Event {
    store: bool,
    sequence: usize,
    begin: usize,
    end: usize,
}

/// The first `keep` hashes of a sequence, then hashes that nothing else has.
#[derive(Clone, Copy)]
pub struct Query {
    pub sequence: usize,
    pub keep: usize,
    salt: u64,
}

pub struct Workload {
    pub depth: usize,
    pub resident: usize,
    pub pairs: u64,
    pub worker_of: Vec<u64>,
    locals: Vec<LocalBlockHash>,
    names: Vec<u64>,
    events: HashMap<String, Vec<Event>>,
    queries: HashMap<String, Vec<Query>>,
}

/// Takes little-endian numbers from the front of a file.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn bytes(&mut self, count: usize) -> Option<&[u8]> {
        let (head, tail) = self.0.split_at_checked(count)?;
        self.0 = tail;
        Some(head)
    }
    fn u32(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.bytes(4)?.try_into().ok()?))
    }
    fn size(&mut self) -> Option<usize> {
        Some(self.u32()? as usize)
    }
    fn u64(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.bytes(8)?.try_into().ok()?))
    }
    fn u64s(&mut self, count: usize) -> Option<Vec<u64>> {
        let bytes = self.bytes(count.checked_mul(8)?)?;
        Some(bytes.chunks_exact(8).map(|c| u64::from_le_bytes(c.try_into().unwrap())).collect())
    }
    fn lists<T>(
        &mut self,
        count: usize,
        item: impl Fn(&mut Self) -> Option<T>,
    ) -> Option<HashMap<String, Vec<T>>> {
        let mut lists = HashMap::new();
        for _ in 0..count {
            let name =
                String::from_utf8(self.bytes(NAME_BYTES)?.to_vec()).ok()?.trim_end_matches('\0').to_string();
            let items = self.u64()?;
            lists.insert(name, (0..items).map(|_| item(self)).collect::<Option<Vec<T>>>()?);
        }
        Some(lists)
    }
}

fn parse(bytes: &[u8]) -> Option<Workload> {
    let mut reader = Reader(bytes);
    if reader.bytes(4)? != MAGIC || reader.u32()? != VERSION {
        return None;
    }
    let _workers = reader.u32()?;
    let [depth, resident, added, event_lists, query_lists] =
        [reader.size()?, reader.size()?, reader.size()?, reader.size()?, reader.size()?];
    let (pairs, _contents) = (reader.u64()?, reader.u64()?);
    let sequences = resident + added;
    let worker_of = reader.u64s(sequences)?;
    let locals = reader.u64s(sequences.checked_mul(depth)?)?.into_iter().map(LocalBlockHash).collect();
    let names = reader.u64s(sequences * depth)?;
    let events = reader.lists(event_lists, |r| {
        let [kind, sequence, begin, end] = [r.size()?, r.size()?, r.size()?, r.size()?];
        let fits = kind <= 1 && sequence < sequences && begin < end && end <= depth;
        fits.then_some(Event { store: kind == 0, sequence, begin, end })
    })?;
    let queries = reader.lists(query_lists, |r| {
        let query = Query { sequence: r.size()?, keep: r.size()?, salt: r.u64()? };
        (query.sequence < sequences && query.keep <= depth).then_some(query)
    })?;
    reader.0.is_empty().then_some(Workload {
        depth,
        resident,
        pairs,
        worker_of,
        locals,
        names,
        events,
        queries,
    })
}

impl Workload {
    pub fn read(path: &str) -> Result<Self, String> {
        let bytes = std::fs::read(path).map_err(|e| format!("cannot read {path}: {e}"))?;
        parse(&bytes).ok_or_else(|| format!("{path} is no index workload of version {VERSION}"))
    }

    pub fn events(&self, list: &str, event_size: usize) -> Result<&[Event], String> {
        let name = format!("{list}.{event_size}");
        self.events.get(&name).map(Vec::as_slice).ok_or_else(|| format!("the workload has no list {name}"))
    }
    pub fn queries(&self, list: &str) -> Result<&[Query], String> {
        self.queries.get(list).map(Vec::as_slice).ok_or_else(|| format!("the workload has no queries {list}"))
    }
    /// Whether the churn leaves a sequence alone.
    pub fn stays(&self, sequence: usize) -> bool {
        (self.resident / 2..self.resident).contains(&sequence)
    }

    /// The hashes of a query, into a list that is overwritten.
    pub fn expand(&self, query: &Query, out: &mut Vec<LocalBlockHash>) {
        let start = query.sequence * self.depth;
        out.clear();
        out.extend_from_slice(&self.locals[start..start + query.keep]);
        out.extend((query.keep..self.depth).map(|i| LocalBlockHash(mix(query.salt.wrapping_add(i as u64)))));
    }

    /// Events as the router takes them.
    pub fn build(&self, events: &[Event]) -> Vec<RouterEvent> {
        events.iter().enumerate().map(|(id, event)| self.build_one(id as u64, event)).collect()
    }

    fn build_one(&self, event_id: u64, event: &Event) -> RouterEvent {
        let at = |i: usize| event.sequence * self.depth + i;
        let name = |i: usize| ExternalSequenceBlockHash(self.names[at(i)]);
        let data = if event.store {
            KvCacheEventData::Stored(KvCacheStoreData {
                parent_hash: (event.begin > 0).then(|| name(event.begin - 1)),
                start_position: None,
                blocks: (event.begin..event.end)
                    .map(|i| KvCacheStoredBlockData {
                        tokens_hash: self.locals[at(i)],
                        block_hash: name(i),
                        mm_extra_info: None,
                    })
                    .collect(),
            })
        } else {
            let block_hashes = (event.begin..event.end).rev().map(name).collect();
            KvCacheEventData::Removed(KvCacheRemoveData { block_hashes })
        };
        RouterEvent::new(self.worker_of[event.sequence], KvCacheEvent { event_id, data, dp_rank: 0 })
    }
}

pub fn blocks_in(events: &[Event]) -> usize {
    events.iter().map(|e| e.end - e.begin).sum()
}

/// A fingerprint of scores: the same for the same workers and depths, in whatever order they come.
#[derive(Default)]
pub struct Fingerprint {
    matches: u64,
    sum: u64,
}

impl Fingerprint {
    pub fn add(&mut self, query: usize, scores: &OverlapScores) {
        for (worker, depth) in scores.scores.iter().filter(|(_, depth)| **depth > 0) {
            self.matches += 1;
            self.sum =
                self.sum.wrapping_add(mix(mix(mix(query as u64) ^ worker.worker_id) ^ u64::from(*depth)));
        }
    }
}

impl std::fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{:016x}", self.matches, self.sum)
    }
}
