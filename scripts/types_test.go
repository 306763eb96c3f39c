package scripts

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
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
	path  string              // below the module; the root package is "notifyd"
	types map[string]ast.Expr // the declared types
}

func newSourcePackage(path string) *sourcePackage {
	return &sourcePackage{path: path, types: make(map[string]ast.Expr)}
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
		declared, ok := d.(*ast.GenDecl)
		if !ok {
			continue
		}
		for _, s := range declared.Specs {
			if s, ok := s.(*ast.TypeSpec); ok {
				p.types[s.Name.Name] = s.Type
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
