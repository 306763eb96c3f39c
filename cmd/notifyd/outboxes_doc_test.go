//go:build unix

package main

import (
	"fmt"
	"net/http"
	"path"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/cmd/internal/command"

	"github.com/notifyd/notifyd/internal/lab/freeport"
	"github.com/notifyd/notifyd/internal/lab/testenv"
)

// TestOutboxesPage types docs/outboxes.md: the configurations run, and the commands do what the page says.
func TestOutboxesPage(t *testing.T) {
	t.Parallel()
	port, err := freeport.Pick(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	env := vars{"DATABASE_URL": testenv.Database(t)}
	s := &tenants{url: env["DATABASE_URL"], address: fmt.Sprintf("127.0.0.1:%d", port)}
	execute(t, s.url, `CREATE TABLE tenants (name text, schema_name text, active bool); INSERT INTO tenants VALUES ('north', 'north', true), ('south', 'none', false)`)
	billing, _, _ := strings.Cut(path.Base(testenv.Database(t)), "?")
	says := map[string]string{
		"notifyd migrate --mode stream": "schema south is at version ",
		"notifyd status":                "\noutbox south\n",
		`notifyd publish invoice.sent '{"number": 7}' --outbox billing`: "1\n",
		"notifyd dlq list --outbox billing":                             "",
		"notifyd migrate --outbox east --mode stream":                   "schema east is at version ",
	}
	ran := 0
	for _, st := range steps(testenv.ReadFile(t, root+"docs/outboxes.md")) {
		ran++
		switch st.language {
		case "yaml":
			text := strings.NewReplacer("database: billing", "database: "+billing, "127.0.0.1:9470", s.address).Replace(st.text)
			if !strings.Contains(text, "admin:") {
				text += "admin: {listen: '" + s.address + "'}\n"
			}
			if s.reloadable != nil {
				if code := s.end(t); code != command.ExitOK {
					t.Fatalf("exit code %d:\n%s", code, s.stderr.text())
				}
			}
			s.reloadable = startReloadable(t, env, text)
			if strings.Contains(text, "query:") {
				s.up(t, "north")
			}
		case "sql":
			execute(t, s.url, st.text)
			s.get(t, "/metrics", has(`notifyd_outbox_up{outbox="east"} 0`))
		case "sh":
			want, known := says[st.line()]
			if !known {
				t.Fatalf("%q is not run", st.line())
			}
			got := commandIn(t, env, append(words(st.line())[1:], "-c", s.reloadable.path)...)
			if got.code != 0 || !strings.Contains(got.stdout, want) {
				t.Fatalf("%s: got %+v, want %q", st.line(), got, want)
			}
			switch {
			case strings.HasPrefix(st.text, "notifyd publish"):
				s.stdout.await(t, `"destination":"ledger","outbox":"billing"`)
			case strings.Contains(st.text, "east"):
				s.up(t, "east")
			case strings.Contains(st.text, "migrate"):
				s.up(t, "north", "south", "billing")
			}
		}
	}
	if want := len(says) + 3; ran < want {
		t.Errorf("%d steps of %d", ran, want)
	}
	s.get(t, "/readyz", func(code int, _ string) bool { return code == http.StatusOK })
}
