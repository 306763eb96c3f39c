package ops

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/sleep"
)

// WatchCounts counts the outcomes of replayed dead letters.
type WatchCounts struct {
	// Delivered letters were acknowledged by their destination.
	Delivered int64 `json:"delivered"`
	// Dead letters died again.
	Dead int64 `json:"dead_again"`
	// Discarded letters were discarded by a person after the replay.
	Discarded int64 `json:"discarded"`
	// Gone letters left the tables without a recorded acknowledgement: a condition (when) of the route now excludes the
	// destination, or a person removed the event, the position or the delivery.
	Gone int64 `json:"gone"`
	// Waiting letters are still to be delivered.
	Waiting int64 `json:"waiting"`
	// Groups are those that died again, the largest first; with as many errors as letters, only a
	// few thousand of them are kept.
	Groups []DeadLetterGroup `json:"groups"`
}

const (
	// watchBatch is the number of letters that one statement looks at, and watchLook the number that
	// one Update reads.
	watchBatch, watchUpdate = 1000, 20_000
	// watchGroups bounds WatchCounts.Groups.
	watchGroups = 5000
	// The pause between two looks, which is longer the longer nothing changes.
	watchFirst, watchLast = 20 * time.Millisecond, time.Second
)

// Watch follows replayed dead letters until each is delivered, dead again, or gone. Its methods may be
// called by several goroutines.
type Watch struct {
	store *Client

	updating sync.Mutex // held during an Update

	mu      sync.Mutex // guards the fields below
	names   []string
	pending []pending // those that waited last longest ago come first
	counts  WatchCounts
	groups  map[groupKey]*DeadLetterGroup
}

// pending is a delivery that waits. There may be a million.
type pending struct {
	event int64
	name  int // in Watch.names
}

type groupKey struct{ destination, eventType, fingerprint string }

// Watch returns a watch for no letters yet: set [BulkAction.Acted] of a replay to its Add.
func (s *Client) Watch() *Watch { return &Watch{store: s, groups: make(map[groupKey]*DeadLetterGroup)} }

// Add adds letters that were replayed.
func (w *Watch) Add(letters []DeadLetter) {
	w.mu.Lock()
	defer w.mu.Unlock()

	for i := range letters {
		name := slices.Index(w.names, letters[i].Destination)
		if name < 0 {
			name = len(w.names)
			w.names = append(w.names, letters[i].Destination)
		}
		w.pending = append(w.pending, pending{letters[i].EventID, name})
	}
}

// Counts returns the counts of the last Update.
func (w *Watch) Counts() WatchCounts {
	w.mu.Lock()
	defer w.mu.Unlock()

	b := w.counts
	b.Waiting = int64(len(w.pending))
	b.Groups = []DeadLetterGroup{}
	for _, g := range w.groups {
		b.Groups = append(b.Groups, *g)
	}

	slices.SortFunc(b.Groups, func(a, b DeadLetterGroup) int {
		return cmp.Or(
			cmp.Compare(b.Count, a.Count),
			cmp.Compare(a.Destination, b.Destination),
			cmp.Compare(a.Type, b.Type),
			cmp.Compare(a.Fingerprint, b.Fingerprint),
		)
	})
	return b
}

// Await looks until no letter waits, or until ctx ends; then the error is
// from ctx.
func (w *Watch) Await(ctx context.Context) (WatchCounts, error) {
	for pause := watchFirst; ; pause = min(2*pause, watchLast) {
		before := w.Counts().Waiting
		b, err := w.Update(ctx)
		switch {
		case ctx.Err() != nil:
			return b, context.Cause(ctx)
		case err != nil || b.Waiting == 0:
			return b, err
		case b.Waiting < before:
			pause = watchFirst
		}

		sleep.For(ctx, pause)
	}
}

// Update reads the state of some thousands of the waiting letters, those first that it has not read for longest.
func (w *Watch) Update(ctx context.Context) (WatchCounts, error) {
	w.updating.Lock()
	defer w.updating.Unlock()

	w.mu.Lock()
	left := min(watchUpdate, len(w.pending))
	w.mu.Unlock()

	for left > 0 {
		n, err := w.update(ctx, min(watchBatch, left))
		if err != nil {
			return w.Counts(), err
		}
		left -= n
	}

	return w.Counts(), nil
}

// sqlOutcomes reads the outcomes of deliveries, and returns no row for one that waits. For a deleted delivery the last
// audit entry gives the reason, unless that entry is the replay.
const sqlOutcomes = `SELECT p.n, CASE WHEN d.event_id IS NULL THEN coalesce((SELECT a.action FROM {audit} AS a
		WHERE a.event_id = p.event_id AND a.destination = p.destination AND a.action IN ('replay', 'discard', 'delivered')
			ORDER BY a.id DESC LIMIT 1), 'replay') ELSE '' END,
	p.event_id, p.destination, coalesce(d.event_type, ''), coalesce(d.error_fingerprint, ''), coalesce(d.updated_at, now()),
	coalesce(d.attempts, 0), coalesce(d.replays, 0), coalesce(d.error_class, ''), coalesce(d.last_error, '')
FROM unnest($1::bigint[], $2::text[]) WITH ORDINALITY AS p(event_id, destination, n)
LEFT JOIN {deliveries} AS d ON d.event_id = p.event_id AND d.destination = p.destination
WHERE d.state IS NULL OR d.state = 'dead' ORDER BY p.n`

// result is the outcome of one delivery.
type result struct {
	n      int
	last   string // the last entry of the audit, of a delivery that is gone
	letter DeadLetter
}

// look looks at the first n that wait.
func (w *Watch) update(ctx context.Context, n int) (int, error) {
	ids := make([]int64, n)
	names := make([]string, n)

	w.mu.Lock()
	batch := slices.Clone(w.pending[:n])
	for i, p := range batch {
		ids[i] = p.event
		names[i] = w.names[p.name]
	}
	w.mu.Unlock()

	var found []result
	err := w.store.read(ctx, fmt.Sprintf("see what became of %d dead letters", n), func(tx pgx.Tx, _ time.Time) error {
		// By the primary key, one after the other, whatever stale statistics say.
		const byIndex = `SET LOCAL enable_seqscan = off; SET LOCAL enable_hashjoin = off; SET LOCAL enable_mergejoin = off`
		if _, err := tx.Exec(ctx, byIndex); err != nil {
			return err
		}

		rows, err := tx.Query(ctx, w.store.sql(sqlOutcomes), ids, names)
		if err != nil {
			return err
		}

		found, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (r result, err error) {
			l := &r.letter
			err = row.Scan(&r.n, &r.last, &l.EventID, &l.Destination, &l.Type, &l.Fingerprint,
				&l.DiedAt, &l.Attempts, &l.Replays, &l.Class, &l.Error)
			return r, err
		})

		return err
	})
	if err != nil {
		return 0, err
	}

	w.mu.Lock()
	defer w.mu.Unlock()

	settled := make([]bool, n)
	for i := range found {
		settled[found[i].n-1] = true
		w.count(&found[i])
	}

	rest := w.pending[n:]
	for i, p := range batch {
		if !settled[i] {
			rest = append(rest, p)
		}
	}

	w.pending = rest
	return n, nil
}

func (w *Watch) count(r *result) {
	switch l := r.letter; r.last {
	case "discard":
		w.counts.Discarded++
	case "delivered":
		w.counts.Delivered++
	case "replay":
		w.counts.Gone++
	default:
		w.counts.Dead++

		key := groupKey{l.Destination, l.Type, l.Fingerprint}
		g := w.groups[key]
		if g == nil {
			if len(w.groups) == watchGroups {
				return
			}
			g = &DeadLetterGroup{Destination: l.Destination, Type: l.Type, Fingerprint: l.Fingerprint, Oldest: l.DiedAt}
			w.groups[key] = g
		}

		g.Count++
		if l.DiedAt.Before(g.Oldest) {
			g.Oldest = l.DiedAt
		}

		if !l.DiedAt.Before(g.Newest) {
			g.Newest = l.DiedAt
			g.Example = l
		}
	}
}
