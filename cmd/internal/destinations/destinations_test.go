package destinations_test

import (
	"io"
	"log/slog"
	"slices"
	"testing"

	"github.com/notifyd/notifyd/cmd/internal/config"
	"github.com/notifyd/notifyd/cmd/internal/destinations"
)

// foreign are settings that the registry has not made.
type foreign struct{}

func (foreign) Validate() error { return nil }

func TestOpenDestinationOfForeignSettings(t *testing.T) {
	t.Parallel()
	_, err := destinations.Open(config.Destination{Name: "d", Type: "carrier-pigeon", Settings: foreign{}}, slog.New(slog.DiscardHandler))
	if err == nil || err.Error() != `type "carrier-pigeon" cannot be opened` {
		t.Errorf("got %v", err)
	}
}

// TestTransactionalIDsOfDestinations: each shard has an id of its own, in each schema of each database, and only with exactly_once.
func TestTransactionalIDsOfDestinations(t *testing.T) {
	t.Parallel()
	const head = "version: 1\nroutes: [{match: '*', to: k}]\ndestinations:\n  k:\n    type: kafka\n    brokers: [localhost:9092]\n    topic: t\n"
	ids := func(settings, database, schema string) []string {
		t.Helper()
		c, err := config.Parse("notifyd.yaml", []byte(head+settings), destinations.Registry(".", io.Discard, io.Discard), func(string) (string, bool) { return "", false })
		if err != nil {
			t.Fatal(err)
		}
		return destinations.TransactionalIDs(c.Destinations[0], database, schema)
	}
	if none := ids("", "app", "public"); none != nil {
		t.Errorf("without exactly_once: %q", none)
	}
	const exactly = "    exactly_once: true\n    shards: 2\n"
	all := slices.Concat(ids(exactly, "app", "public"), ids(exactly, "app", "other"), ids(exactly, "shop", "public"))
	slices.Sort(all)
	if len(all) != 6 || len(slices.Compact(all)) != 6 {
		t.Errorf("got %q", all)
	}
}
