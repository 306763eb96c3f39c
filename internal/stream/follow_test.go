package stream

import (
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/idset"
	"github.com/notifyd/notifyd/internal/position"
	"github.com/notifyd/notifyd/internal/routes"
	"github.com/notifyd/notifyd/internal/routing"
	"github.com/notifyd/notifyd/internal/session"
	"github.com/notifyd/notifyd/internal/tail"
)

// TestUnroutedScannerFollows: the scanner takes over what a shard has read if destinations read all of these types, and the gaps with it, and nothing
// else.
func TestUnroutedScannerFollows(t *testing.T) {
	t.Parallel()
	l := newStream(t)
	at := map[string]idset.Watermark{"audit": {Head: 300}, "mail": {}}
	all := []routes.Wanted{{Destination: "audit", Routes: routing.Routes{Patterns: []string{"late"}}}, {Destination: "mail", Routes: routing.Routes{Patterns: []string{"order.*", "user.*"}}}}
	err := pgx.BeginFunc(l.Context(), l.Conn, func(tx pgx.Tx) error {
		for _, w := range all {
			if err := routes.Begin(l.Context(), tx, all, w, at[w.Destination]); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	begin := idset.Watermark{Head: 100, Open: idset.Set{{From: 20, To: 20}}}
	for _, c := range []struct {
		name string
		seen seen
		want string
	}{
		{
			"all have routes",
			seen{tail.Seen{From: 10, Head: 500, Gaps: idset.Set{{From: 5, To: 5}, {From: 90, To: 120}}}, []string{"order.placed", "user.created"}},
			"500 {[101,121)}", // 20 it has read, or it is dead
		},
		{"it has begun between", seen{tail.Seen{From: 50, Head: 500, Gaps: idset.Set{{From: 20, To: 20}, {From: 60, To: 60}}}, []string{"order.placed"}}, "500 {[20,21)}"},
		{"it still has the gap", seen{tail.Seen{From: 10, Head: 500, Gaps: idset.Set{{From: 20, To: 30}}}, []string{"order.placed"}}, "500 {[20,21)}"},
		{"one has none", seen{tail.Seen{From: 10, Head: 500}, []string{"order.placed", "other"}}, "100 {[20,21)}"},
		{"one has gained its route later", seen{tail.Seen{From: 10, Head: 500}, []string{"order.placed", "late"}}, "100 {[20,21)}"},
		{"they are too many", seen{tail.Seen{From: 10, Head: 500}, nil}, "100 {[20,21)}"},
		{"it has begun above", seen{tail.Seen{From: 101, Head: 500}, []string{"order.placed"}}, "100 {[20,21)}"},
		{"it is behind", seen{tail.Seen{From: 10, Head: 100}, []string{"order.placed"}}, "100 {[20,21)}"},
		{"it has begun where the scanner is", seen{tail.Seen{From: 100, Head: 101}, []string{"order.placed"}}, "101 {[20,21)}"},
	} {
		e := &Engine{writers: tail.NewWriterScanner(), shards: make(map[shardKey]*activeShard)}
		sh, old := &shard{}, &shard{}
		sh.seen.Store(&c.seen)
		old.pos.Server = "the one before a failover" // it had more events
		old.seen.Store(&seen{tail.Seen{Head: 900}, []string{"order.placed"}})
		r := newUnroutedScanner(e, position.Position{Watermark: begin})
		e.shards[shardKey{}], e.shards[shardKey{"loading", 0}] = &activeShard{runner: r}, &activeShard{}
		e.shards[shardKey{"mail", 0}], e.shards[shardKey{"new", 0}] = &activeShard{runner: sh}, &activeShard{runner: &shard{}}
		e.shards[shardKey{"slow", 0}] = &activeShard{runner: old}
		if err := r.load(l.Context(), session.Direct(l.Conn)); err != nil {
			t.Fatal(err)
		}
		moved := r.follow()
		if got := fmt.Sprintf("%d %s", r.reader.Head(), r.reader.Gaps()); got != c.want || moved != (r.reader.Head() > begin.Head) || moved != r.progress.dirty {
			t.Errorf("%s: at %s, want %s; %v", c.name, got, c.want, moved)
		}
	}
}
