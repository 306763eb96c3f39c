package scripts

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// mostFields is how many fields one lock, or one goroutine, may guard.
const mostFields = 80

// loops are owners without a mutex: one goroutine at a time uses their fields.
var loops = []string{
	"cmd/internal/daemon.generation",
	"cmd/internal/daemon.supervisor",
	"internal/lease.Holder",
	"internal/queue.Engine",
	"internal/queue.claimer",
	"internal/stream.shard",
	"internal/stream.unroutedScanner",
	"internal/tail.Reader",
	"internal/tail.WriterScanner",
	"internal/tail.begun", // a read in a goroutine of its own
	"internal/wake.Machine",
	"notifyd.Relay",
	"notifyd.purger",
}

// splitTypes have methods in several files. The numbers are the files of today, so that they can only fall.
var splitTypes = []struct {
	reason string
	files  map[string]int
}{
	{"validate.go checks what config.go declares, and what few destinations have is with its code", map[string]int{
		"handlers/email.Config":     2,
		"handlers/kafka.Config":     2,
		"handlers/nats.Config":      2,
		"handlers/pubsub.Config":    2,
		"handlers/rabbitmq.Config":  3,
		"handlers/rabbitmq.Declare": 2,
		"handlers/redis.Config":     3,
		"handlers/slack.Config":     2,
		"handlers/sqs.Config":       2,
		"handlers/webhook.Config":   3,
		"cmd/internal/config.Lane":  2,
	}},
	{"a destination has a file for each task: check.go connects, errors.go classifies, preview.go renders without sending", map[string]int{
		"handlers/email.Handler":        3,
		"handlers/email.conn":           2,
		"handlers/file.Handler":         3,
		"handlers/internal/awsapi.Conn": 3,
		"handlers/kafka.Handler":        7,
		"handlers/nats.Handler":         5,
		"handlers/postgres.Handler":     4,
		"handlers/pubsub.Handler":       4,
		"handlers/rabbitmq.Handler":     6,
		"handlers/rabbitmq.target":      2,
		"handlers/redis.Handler":        4,
		"handlers/slack.Handler":        4,
		"handlers/slack.answer":         3,
		"handlers/slack.apiPoster":      2,
		"handlers/slack.webhookPoster":  2,
		"handlers/sqs.Handler":          4,
		"handlers/webhook.Handler":      7,
	}},
	{"a delivery that happens exactly once has files of its own, with its part of the batch and of the producer", map[string]int{
		"handlers/kafka.batch":    4,
		"handlers/kafka.producer": 4,
		"handlers/redis.batch":    2,
	}},
	{"a file for each form of a message", map[string]int{
		"handlers/internal/message.Encoder": 3,
	}},
	{"a file for each group of proofs that a destination passes", map[string]int{
		"handlers/handlertest.probe": 6,
	}},
	{"a file for each command", map[string]int{
		"cmd/internal/command/configuration.planPrinter": 2,
		"cmd/internal/command/events.printer":            2,
	}},
	{"a file for each part of the configuration", map[string]int{
		"cmd/internal/config.Config":      6,
		"cmd/internal/config.Destination": 3,
		"cmd/internal/config.decoder":     3,
		"cmd/internal/config.fileDecoder": 4,
	}},
	{"a file for each page", map[string]int{
		"internal/console.Console": 3,
		"internal/console.outbox":  10,
	}},
	{"a file for each section", map[string]int{
		"internal/status.Relay":            2,
		"internal/status.RelayDestination": 2,
		"internal/status.Status":           5,
	}},
	{"a file for each check", map[string]int{
		"cmd/internal/doctor.exam": 9,
	}},
	{"a file for each question to the tables, with its SQL", map[string]int{
		"internal/queue.Session":       4,
		"ops.Client":                   16,
		"internal/store.Connector":     3,
		"internal/store.Session":       3,
		"internal/store.Watch":         2,
		"internal/store.backlogReader": 4,
	}},
	{"a file for each direction in which a table changes", map[string]int{
		"sql.change":     2,
		"sql.modeChange": 5,
	}},
	{"a file for each measurement", map[string]int{
		"cmd/internal/bench.Env":     6,
		"cmd/internal/bench.drain":   6,
		"cmd/internal/bench.latency": 2,
	}},
	{"a file for each step of the example", map[string]int{
		"examples/orders.shop":   2,
		"cmd/internal/demo.demo": 5,
	}},
	{"the life of a server, and the faults that tests make, are apart from its start", map[string]int{
		"internal/lab/privateserver.Server":              4,
		"internal/lab/privateserver/kafkaserver.Server":  2,
		"internal/lab/privateserver/pginstall.installer": 2,
		"internal/lab/privateserver/pgserver.Server":     3,
		"internal/lab/privateserver/rabbitserver.Server": 2,
		"internal/smtpsink.Sink":                         2,
	}},
	{"a file for each operating system", map[string]int{
		"internal/lab/privateserver.Account": 3,
		"internal/lab/testenv.Network":       3,
	}},
	{"what few users of a small package need is apart", map[string]int{
		"internal/tmpl.Template":   2,
		"internal/when.Expression": 3,
		"internal/when.Language":   2,
	}},
	{"the relay wires parts that have files of their own", map[string]int{
		"notifyd.Relay": 3,
	}},
}

// TestFieldsOfOwners bounds what a reader must know to change code under one lock. The fields that an owner guards
// are its own and those of the structs of its package that it reaches, directly or through pointers, slices,
// maps and channels. The count stops at another owner, which guards its own fields, and at types named Config or Options,
// which nothing changes.
func TestFieldsOfOwners(t *testing.T) {
	t.Parallel()
	packages := parseModule(t)
	owners := 0
	for _, p := range packages {
		for name := range p.types {
			if !p.isOwner(name) {
				continue
			}
			owners++
			if fields := p.fieldsOf(name); fields > mostFields {
				t.Errorf("%s.%s guards %d fields, more than %d: move state behind a lock, or into a goroutine, of its own", p.path, name, fields, mostFields)
			}
		}
	}
	for _, name := range loops {
		path, typ, _ := strings.Cut(name, ".")
		if p := packages[path]; p == nil || !p.isOwner(typ) {
			t.Errorf("%s of loops is no struct: remove it", name)
		}
	}
	if owners < 60 {
		t.Errorf("only %d owners were found", owners)
	}
}

// TestMethodsInOneFile finds types whose methods are in several files.
func TestMethodsInOneFile(t *testing.T) {
	t.Parallel()
	split := make(map[string]int)
	for _, s := range splitTypes {
		for name, files := range s.files {
			if split[name] > 0 {
				t.Errorf("%s is in splitTypes twice", name)
			}
			split[name] = files
		}
	}
	for _, p := range parseModule(t) {
		for name, files := range p.methods {
			name = p.path + "." + name
			most, listed := split[name]
			delete(split, name)
			switch {
			case listed && len(files) == 1:
				t.Errorf("%s has its methods in one file: remove it from splitTypes", name)
			case listed && len(files) < most:
				t.Errorf("%s has its methods in %d files, fewer than %d: lower the number in splitTypes", name, len(files), most)
			case listed && len(files) > most:
				t.Errorf("%s has its methods in %d files, more than the %d of splitTypes: %v", name, len(files), most, slices.Sorted(maps.Keys(files)))
			case !listed && len(files) > 1:
				t.Errorf("%s has its methods in %d files: move them into one, or add the type to splitTypes with the reason: %v", name, len(files), slices.Sorted(maps.Keys(files)))
			}
		}
	}
	for name := range split {
		t.Errorf("%s of splitTypes has no methods: remove it", name)
	}
}

// TestFieldsAreCounted checks the count of TestFieldsOfOwners with each way to reach a type.
func TestFieldsAreCounted(t *testing.T) {
	t.Parallel()
	p := newSourcePackage("example")
	p.add(t, "example.go", `package example

		type owner struct { // 7
			mu     sync.RWMutex
			a, b   int
			direct part
			back   *owner
			other  *second
			parts
		}
		type parts map[key][]*deep
		type key struct{ text string } // 1
		type deep struct { // 2
			again *part
			list  atomic.Pointer[leaf]
		}
		type part struct { // 3: a field of an anonymous struct counts
			config Config
			inner  struct{ x int }
		}
		type leaf struct{ y chan event } // 1
		type event struct{ id int } // 1
		type second struct {
			mu sync.Mutex
			hidden [3]int
		}
		type Config struct{ name string }
		type noOwner struct{ x int }
	`)
	if got, want := p.fieldsOf("owner"), 7+1+2+3+1+1; got != want {
		t.Errorf("owner guards %d fields, want %d", got, want)
	}
	if got := p.fieldsOf("second"); got != 2 {
		t.Errorf("second guards %d fields, want 2", got)
	}
	if !p.isOwner("owner") || !p.isOwner("second") || p.isOwner("noOwner") || p.isOwner("parts") {
		t.Error("the owners are not those with a lock")
	}
}

// sourcePackage is the source of a package, without its tests.
type sourcePackage struct {
	path    string                     // below the module; the root package is "notifyd"
	types   map[string]ast.Expr        // the declared types
	methods map[string]map[string]bool // the files with methods of a type
}

func newSourcePackage(path string) *sourcePackage {
	return &sourcePackage{path: path, types: make(map[string]ast.Expr), methods: make(map[string]map[string]bool)}
}

// parseModule parses the packages of the module, without modules below it.
func parseModule(t *testing.T) map[string]*sourcePackage {
	t.Helper()
	all := make(map[string]*sourcePackage)
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != "..":
			if _, err := os.Stat(filepath.Join(path, "go.mod")); err == nil || strings.HasPrefix(d.Name(), ".") {
				return filepath.SkipDir
			}
		case strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, "_test.go"):
			dir := "notifyd"
			if path := filepath.ToSlash(filepath.Dir(path)); path != ".." {
				dir = strings.TrimPrefix(path, "../")
			}
			if all[dir] == nil {
				all[dir] = newSourcePackage(dir)
			}
			all[dir].add(t, path, nil)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// add parses a file of the package. source is as for parser.ParseFile.
func (p *sourcePackage) add(t *testing.T, path string, source any) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), path, source, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range file.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			if d.Recv == nil {
				continue
			}
			name := receiver(d.Recv.List[0].Type)
			if p.methods[name] == nil {
				p.methods[name] = make(map[string]bool)
			}
			p.methods[name][filepath.Base(path)] = true
		case *ast.GenDecl:
			for _, s := range d.Specs {
				if s, ok := s.(*ast.TypeSpec); ok {
					p.types[s.Name.Name] = s.Type
				}
			}
		}
	}
}

// isOwner reports whether a type is a struct that has a lock or is one of loops.
func (p *sourcePackage) isOwner(name string) bool {
	s, ok := p.types[name].(*ast.StructType)
	if !ok {
		return false
	}
	for _, f := range s.Fields.List {
		if x, ok := f.Type.(*ast.SelectorExpr); ok && fmt.Sprint(x.X) == "sync" && (x.Sel.Name == "Mutex" || x.Sel.Name == "RWMutex") {
			return true
		}
	}
	return slices.Contains(loops, p.path+"."+name)
}

// fieldsOf counts the fields that an owner guards.
func (p *sourcePackage) fieldsOf(owner string) int {
	return p.count(p.types[owner], map[string]bool{owner: true})
}

// count counts the fields that a type has and reaches. Each declared type counts once, as seen records.
func (p *sourcePackage) count(e ast.Expr, seen map[string]bool) (n int) {
	switch x := e.(type) {
	case *ast.Ident:
		if p.types[x.Name] == nil || seen[x.Name] || p.isOwner(x.Name) || strings.HasSuffix(x.Name, "Config") || strings.HasSuffix(x.Name, "Options") {
			return 0
		}
		seen[x.Name] = true
		return p.count(p.types[x.Name], seen)
	case *ast.StructType:
		for _, f := range x.Fields.List {
			n += max(1, len(f.Names)) + p.count(f.Type, seen)
		}
		return n
	case *ast.StarExpr:
		return p.count(x.X, seen)
	case *ast.ParenExpr:
		return p.count(x.X, seen)
	case *ast.ArrayType:
		return p.count(x.Elt, seen)
	case *ast.MapType:
		return p.count(x.Key, seen) + p.count(x.Value, seen)
	case *ast.ChanType:
		return p.count(x.Value, seen)
	case *ast.IndexExpr: // a generic type, as atomic.Pointer[T]
		return p.count(x.X, seen) + p.count(x.Index, seen)
	case *ast.IndexListExpr:
		n = p.count(x.X, seen)
		for _, i := range x.Indices {
			n += p.count(i, seen)
		}
		return n
	default: // interfaces, functions and types of other packages
		return 0
	}
}

// receiver returns the name of the type of a method.
func receiver(e ast.Expr) string {
	for {
		switch x := e.(type) {
		case *ast.StarExpr:
			e = x.X
		case *ast.IndexExpr:
			e = x.X
		case *ast.IndexListExpr:
			e = x.X
		case *ast.Ident:
			return x.Name
		default:
			return ""
		}
	}
}
