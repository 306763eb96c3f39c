// Package capture makes triggers that write an event for each changed row of a table.
//
// A capture is one function and one trigger for each operation. Both belong to the owner of the table. The triggers
// run once for each statement, and read the changed rows from its transition tables. The function runs with the
// rights of its owner (SECURITY DEFINER), so that the writers of the table need no privilege on the outbox.
//
// The function converts whole rows with to_jsonb, and removes the other columns. PostgreSQL resolves no name of a column,
// so that a dropped or renamed column never makes a write fail.
//
// The catalog is the only store: the comment of the function is the description of the capture, as JSON.
package capture

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"

	"github.com/notifyd/notifyd/internal/pgschema"
	outboxsql "github.com/notifyd/notifyd/sql"
)

// The operations that a capture can have.
const (
	Insert   = "insert"
	Update   = "update"
	Delete   = "delete"
	Truncate = "truncate"
)

// Operations returns all operations, in the order in which commands name them.
func Operations() []string { return []string{Insert, Update, Delete, Truncate} }

// DefaultOperations returns the operations of a capture that names none.
func DefaultOperations() []string { return []string{Insert, Update, Delete} }

// defaultType returns the event type of an operation without a type: orders.inserted, orders.updated, orders.deleted,
// orders.truncated.
func defaultType(table, operation string) string {
	return table + "." + strings.TrimSuffix(operation, "e") + "ed"
}

// Capture describes which changes of a table become events, and which events.
type Capture struct {
	// Outbox is the schema of the outbox that gets the events.
	Outbox string `json:"outbox"`
	// Schema and Table are the names of the table when the capture was made. Events have them.
	Schema string `json:"schema"`
	Table  string `json:"table"`
	// Types are the event types by operation. An operation without a type is not captured.
	Types map[string]string `json:"types"`
	// AggregateType is the aggregate_type of the events. The key is their aggregate_id.
	AggregateType string `json:"aggregate_type"`
	// Key are the columns that identify a row.
	Key []string `json:"key"`
	// Columns are the columns in the events; the key is among them. Excluded are the other columns that the table had.
	Columns  []string `json:"columns"`
	Excluded []string `json:"excluded"`
}

// Operations returns the captured operations, in the order of [Operations].
func (c *Capture) Operations() []string {
	return slices.DeleteFunc(Operations(), func(operation string) bool { return c.Types[operation] == "" })
}

// Name returns the name of the table as SQL has it: shop.orders, public."Order".
func (c *Capture) Name() string { return qualified(c.Schema, c.Table) }

// qualified returns a name of two parts, quoted where SQL needs it.
func qualified(schema, name string) string { return quoteIdent(schema) + "." + quoteIdent(name) }

// quoteIdent quotes a name unless it consists of lower-case letters, digits and underscores. A reserved word stays as it
// is: to_regclass accepts it. It is for names that people type, not for statements.
func quoteIdent(name string) string {
	plain := name != "" && name[0] != '$' && !isDigit(rune(name[0]))
	for _, r := range name {
		isWord := r == '_' || isLower(r) || isDigit(r)
		plain = plain && isWord
	}
	if plain {
		return name
	}
	return pgx.Identifier{name}.Sanitize()
}

func isLower(r rune) bool { return r >= 'a' && r <= 'z' }

func isDigit(r rune) bool { return r >= '0' && r <= '9' }

// maxNameBytes is the longest name that PostgreSQL keeps.
const maxNameBytes = 63

const (
	functionPrefix = "notifyd_capture_"
	triggerPrefix  = "notifyd_capture_"
	hashDigits     = 8
)

// shortened returns prefix and name with a hash of all parts, within [maxNameBytes].
func shortened(prefix, name string, parts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
	hash := "_" + hex.EncodeToString(sum[:])[:hashDigits]
	for len(prefix)+len(name)+len(hash) > maxNameBytes {
		_, size := utf8.DecodeLastRuneInString(name)
		name = name[:len(name)-size]
	}
	return prefix + name + hash
}

// function returns the name of the function, which is in the schema of the table. The hash keeps captures of one table
// into several outboxes apart.
func (c *Capture) function() string {
	return shortened(functionPrefix, c.Table, c.Outbox, c.Schema, c.Table)
}

// trigger returns the name of the trigger of an operation. It does not depend on the name of the table: a capture that
// is added again after the table was renamed replaces its triggers.
func (c *Capture) trigger(operation string) string { return triggerName(c.Outbox, operation) }

func triggerName(outbox, operation string) string {
	name := triggerPrefix + operation + "_" + outbox
	if len(name) <= maxNameBytes {
		return name
	}
	return shortened(triggerPrefix+operation+"_", outbox, outbox)
}

// validate returns an error unless the events of c fit into the outbox.
func (c *Capture) validate() error {
	const maxType, maxAggregate = 255, 1024
	if err := pgschema.Validate(c.Outbox); err != nil {
		return err
	}

	if c.AggregateType == "" || len(c.AggregateType) > maxAggregate || !text(c.AggregateType) {
		return fmt.Errorf("aggregate type %q must be text of 1 to %d bytes", c.AggregateType, maxAggregate)
	}

	for _, operation := range c.Operations() {
		if name := c.Types[operation]; len(name) > maxType || !text(name) {
			return fmt.Errorf("event type %q must be text of 1 to %d bytes", name, maxType)
		}
	}

	return nil
}

// text reports whether PostgreSQL can store s.
func text(s string) bool { return utf8.ValidString(s) && !strings.ContainsRune(s, 0) }

// typesOf returns the event types of operations. Without names, the types have the name of the table.
func typesOf(table string, operations, names []string) (map[string]string, error) {
	if len(operations) == 0 {
		operations = DefaultOperations()
	}

	if len(names) > 0 && len(names) != len(operations) {
		return nil, fmt.Errorf("%d event types for the operations %s: name one for each, in this order",
			len(names), strings.Join(operations, ", "))
	}

	types := make(map[string]string, len(operations))
	for i, operation := range operations {
		switch {
		case !slices.Contains(Operations(), operation):
			return nil, fmt.Errorf("operation %q is unknown: use %s", operation, strings.Join(Operations(), ", "))
		case types[operation] != "":
			return nil, fmt.Errorf("operation %s is named twice", operation)
		case len(names) > 0 && names[i] == "":
			return nil, fmt.Errorf("the event type of operation %s is empty", operation)
		case len(names) > 0:
			types[operation] = names[i]
		default:
			types[operation] = defaultType(table, operation)
		}
	}

	return types, nil
}

// Command returns the command line that makes c again. exclude are the columns that the events lack.
func (c *Capture) Command(exclude []string) string {
	words := []string{"notifyd capture add", shellWord(c.Name())}

	operations := c.Operations()
	if !slices.Equal(operations, DefaultOperations()) {
		words = append(words, "--operations", strings.Join(operations, ","))
	}

	types := make([]string, len(operations))
	plain := true
	for i, operation := range operations {
		types[i] = c.Types[operation]
		plain = plain && types[i] == defaultType(c.Table, operation)
	}

	if !plain {
		words = append(words, "--types", list(types))
	}
	if c.AggregateType != c.Table {
		words = append(words, "--aggregate-type", shellWord(c.AggregateType))
	}

	words = append(words, "--key", list(c.Key))
	if len(exclude) > 0 {
		words = append(words, "--exclude", list(exclude))
	}

	if c.Outbox != outboxsql.DefaultSchema {
		words = append(words, "--schema", shellWord(c.Outbox))
	}

	return strings.Join(append(words, "--install"), " ")
}

// list returns the value of a flag that takes a list, as a shell reads it.
func list(values []string) string {
	fields := make([]string, len(values))
	for i, value := range values {
		if strings.ContainsAny(value, "\",\n\r") {
			value = `"` + strings.ReplaceAll(value, `"`, `""`) + `"`
		}
		fields[i] = value
	}
	return shellWord(strings.Join(fields, ","))
}

// shellWord quotes a word for a shell where that is necessary.
func shellWord(word string) string {
	safe := func(r rune) bool {
		isMark := strings.ContainsRune("_-.,", r)
		isLetter := isLower(r | 0x20)
		return isMark || isLetter || isDigit(r)
	}

	if word != "" && strings.IndexFunc(word, func(r rune) bool { return !safe(r) }) < 0 {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

// compare orders captures by their tables.
func compare(a, b State) int {
	return cmp.Or(cmp.Compare(a.Schema, b.Schema), cmp.Compare(a.Table, b.Table))
}
