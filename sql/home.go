package outboxsql

import (
	"errors"
	"fmt"
	"strings"
)

// ErrCopy is wrapped by the error of a relay whose tables are a copy: of a dump, of a template, of a replication or of an
// upgrade to another server. The events of a copy may be delivered where it was made. A person adopts the copy with `notifyd
// adopt`; retrying does not help.
var ErrCopy = errors.New("outbox is a copy")

// Place names where tables are, as the function outbox_place does: the system identifier of the server, the oid of the
// database, the oid of outbox_mode and the name of the database, with slashes between them. The server is 0 where the owner
// of the tables may not ask for it.
type Place string

// String describes the place for a person.
func (p Place) String() string {
	parts := strings.SplitN(string(p), "/", placeParts)
	if len(parts) < placeParts {
		return "nowhere"
	}
	return fmt.Sprintf("database %s (oid %s, table %s) of server %s", parts[3], parts[1], parts[2], parts[0])
}

// placeParts is how many parts a place has; the last one, the name, may contain slashes.
const placeParts = 4

// Home is the home of an outbox, and the place where its tables are.
type Home struct {
	// Is is the only place whose relays deliver; empty for none.
	Is Place
	// Here is where the tables are.
	Here Place
}

// Check returns an error that wraps [ErrCopy] unless the tables of the schema are at home. A failover, a crash and a restart
// leave them at home, and so do a physical copy of the whole server and a rename of the schema.
func (h Home) Check(schema string) error {
	if h.Is == h.Here {
		return nil
	}

	return fmt.Errorf("schema %q: %w: its home is %v, and this is %v: run `notifyd adopt` to have relays deliver from here",
		schema, ErrCopy, h.Is, h.Here)
}
