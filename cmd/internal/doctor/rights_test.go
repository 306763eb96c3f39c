package doctor

import (
	"context"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/pgschema"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// grant gives roles their privileges by the statements that migrate prints for
// the owner of the tables.
func (p *patient) grant(schema string, roles outboxsql.Roles) {
	p.Helper()
	script, err := outboxsql.Grants(schema, roles)
	if err != nil {
		p.Fatal(err)
	}
	p.Exec(script)
}

// role creates a role with a unique name, and returns the quoted name and a function to connect as the role.
func (p *patient) role(what string) (name, quoted string, connect Connect) {
	p.Helper()
	db := p.Conn.Config().Database
	name = fmt.Sprintf(`%s "%s"`, what, db[len(db)-10:])
	quoted = pgx.Identifier{name}.Sanitize()
	p.Exec(`CREATE ROLE ` + quoted + ` LOGIN PASSWORD 'x'`)
	p.Cleanup(func() {
		if _, err := p.Conn.Exec(context.WithoutCancel(p.Context()), `DROP OWNED BY `+quoted+`; DROP ROLE `+quoted); err != nil {
			p.Errorf("drop the role of the test: %v", err)
		}
	})
	u, err := url.Parse(p.URL)
	if err != nil {
		p.Fatal(err)
	}
	u.User = url.UserPassword(name, "x")
	return name, quoted, connectTo(u.String())
}

// TestRights: migrate grants the relay's role all it needs. Every privilege that
// is revoked is found, on each table, and the named cure restores it. The role of
// the writers is reported as insufficient.
func TestRights(t *testing.T) {
	t.Parallel()
	p := newPatient(t)
	writer, _, asWriter := p.role("writer")
	relay, quoted, asRelay := p.role("relay")
	p.grant("public", outboxsql.Roles{Writer: writer, Relay: relay})
	rights := func(as Connect) []Finding {
		t.Helper()
		conn, err := as(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer closeConn(t.Context(), conn)

		e := &exam{Options: Options{Connect: as, Schema: "public"}, conn: conn}
		return e.one(t.Context(), check{"rights", checkRights, false})
	}
	well := func(when string) {
		t.Helper()
		if got := rights(asRelay); len(got) != 1 || got[0].Severity != OK || !strings.Contains(got[0].Text, quoted) {
			t.Errorf("%s: %+v", when, got)
		}
	}
	well("as granted")
	needs := pgschema.RelayPrivileges()
	for _, n := range needs {
		what, table := n.Kind, `"public"."`+n.Table+`"`
		if n.Columns != nil {
			what += " (" + strings.Join(slices.Sorted(slices.Values(n.Columns)), ", ") + ")" // as the finding says
		}
		p.Exec(`REVOKE ` + what + ` ON ` + table + ` FROM ` + quoted)
		got := rights(asRelay)
		if len(got) != 1 || got[0].Severity != Error || got[0].Cure != `GRANT `+what+` ON `+table+` TO `+quoted || !strings.Contains(got[0].Text, `lacks `+what+` on `+table) {
			t.Errorf("without %s on %s: %+v", what, table, got)
			p.Exec(`GRANT ` + what + ` ON ` + table + ` TO ` + quoted)
			continue
		}
		p.Exec(got[0].Cure)
		well("cured of " + what + " on " + table)
	}
	if len(needs) < 9 {
		t.Errorf("only %d privileges: %+v", len(needs), needs)
	}
	p.Exec(`REVOKE UPDATE (processed_at) ON outbox_events FROM ` + quoted)
	if got := rights(asRelay); len(got) != 1 || got[0].Cure != `GRANT UPDATE (processed_at) ON "public"."outbox_events" TO `+quoted {
		t.Errorf("one column: %+v", got)
	}
	p.Exec(`GRANT UPDATE ON outbox_events TO ` + quoted) // more than is needed
	well("with the whole table")
	p.Exec(`ALTER TABLE outbox_audit ENABLE ROW LEVEL SECURITY`)
	if got := rights(asRelay); len(got) != 1 || !strings.Contains(got[0].Text, "Row level security") {
		t.Errorf("row level security of outbox_audit: %+v", got)
	}

	lacksAll(t, rights(asWriter), needs)
}

// lacksAll fails unless the findings name a missing privilege on each table.
func lacksAll(t *testing.T, findings []Finding, needs []pgschema.Privilege) {
	t.Helper()
	lacking := make(map[string]bool)
	for _, f := range findings {
		_, table, found := strings.Cut(f.Text, ` on "public".`)
		if f.Severity == Error && found {
			lacking[strings.TrimSuffix(table, ", which a relay needs.")] = true
		}
	}
	for _, n := range needs {
		if !lacking[`"`+n.Table+`"`] {
			t.Errorf("the role of writers passes as sufficient for a relay on %s: %v", n.Table, lacking)
		}
	}
}
