package postgres

import (
	"strings"
	"testing"

	"github.com/notifyd/notifyd/internal/lab/privateserver/pgserver"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/deliverytest"
)

// TestBalancer: a retry does not go over a connection to a server that refuses every row, such as a former primary that has
// become read-only.
func TestBalancer(t *testing.T) {
	t.Parallel()
	primaries := []*pgserver.Server{testenv.OwnPostgres(t, nil), testenv.OwnPostgres(t, nil)}
	const raise = `CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN RAISE 'refused' USING ERRCODE = TG_ARGV[0]; END$$`
	const enable, disable = `ALTER TABLE received_events ENABLE TRIGGER refuse`, `ALTER TABLE received_events DISABLE TRIGGER refuse`
	trigger := func(state string) string {
		return `CREATE TRIGGER refuse BEFORE INSERT ON received_events FOR EACH ROW EXECUTE FUNCTION refuse('` + state + `')`
	}
	for name, c := range map[string]struct {
		create         []string
		refuse, accept string
	}{
		"read_only": {[]string{raise, trigger(stateReadOnly)}, enable, disable},
		"an_error":  {[]string{raise, trigger("P0001")}, enable, disable},
		"no_partition": {
			[]string{
				`ALTER TABLE received_events RENAME TO model`,
				`CREATE TABLE received_events (LIKE model INCLUDING ALL) PARTITION BY LIST (source)`,
			},
			`DROP TABLE IF EXISTS today`,
			`CREATE TABLE IF NOT EXISTS today PARTITION OF received_events DEFAULT`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var hosts, databases []string
			for _, s := range primaries {
				execute(t, s.URL(""), `CREATE DATABASE `+name)
				execute(t, s.URL(name), append([]string{Schema(Config{})}, c.create...)...)
				hosts, databases = append(hosts, s.Addr()), append(databases, s.URL(name))
			}
			through := strings.Replace(databases[0], hosts[0], testenv.Balancer(t, hosts...), 1)
			deliverytest.Failover(t, open(t, through), events(10), func(server int) {
				execute(t, databases[1-server], c.accept)
				execute(t, databases[server], c.refuse)
			})
		})
	}
}
