package scripts

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// mostPublicPackages bounds what a user of the library has to look through, without the destinations.
const mostPublicPackages = 16

// destinations matches the package of a destination.
var destinations = regexp.MustCompile(`/handlers/[a-z]+$`)

// nameless are types of internal packages in public declarations that a program outside can do without.
var nameless = map[string]string{
	"limit.Reserve": "a field of dispatch.Config, which the relay alone sets",
	"order.Key":     "dispatch.Key is its public name",
}

// TestPublicAPI: what a program outside of the module reads of a public package is what it can write. Doc comments of exported
// names mention no exported name of an internal package, and no exported declaration has a type of one.
func TestPublicAPI(t *testing.T) {
	t.Parallel()
	internal, public := surfaces(t)
	if len(internal) < 20 || len(public) < 20 {
		t.Fatalf("%d names of internal packages, %d public packages", len(internal), len(public))
	}
	packages := make(map[string]bool)
	used := make(map[string]bool)
	for _, file := range public {
		folder := filepath.ToSlash(filepath.Dir(file.set.Position(file.file.Pos()).Filename))
		isDestination := destinations.MatchString(folder) && path.Base(folder) != "handlertest"
		if !isDestination {
			packages[folder] = true
		}
		for _, complaint := range file.complaints(internal) {
			_, name, isType := strings.Cut(complaint, "has the type ")
			if used[name] = isType; !isType || nameless[name] == "" {
				t.Error(complaint)
			}
		}
	}
	if len(packages) > mostPublicPackages {
		t.Errorf("%d public packages, at most %d: what no program outside imports belongs below internal", len(packages), mostPublicPackages)
	}
	for name := range nameless {
		if !used[name] {
			t.Errorf("no public declaration has the type %s: remove it from nameless", name)
		}
	}
}

// TestPublicAPIFinds checks what TestPublicAPI finds.
func TestPublicAPIFinds(t *testing.T) {
	t.Parallel()
	file := parsePublic(t, "example.go", `// Package example returns store.ErrPackage.
		package example

		import (
			"context"

			hidden "github.com/notifyd/notifyd/internal/store"
			"github.com/notifyd/notifyd/delivery"
		)

		// Open returns store.ErrOpen.
		func Open(ctx context.Context, at hidden.Place) error

		// closed returns store.ErrClosed.
		func closed(at hidden.Unexported)

		// Config has no store.defaults, and delivers delivery.Events.
		type Config struct {
			// Password is a [store.Secret].
			Password []hidden.Secret
			Handler  delivery.Handler
			inner    hidden.Inner
		}

		// Close ends in *store.Closed.
		func (c *Config) Close() (hidden.Closed, error)

		func (c config) Shut() hidden.Shut

		type Alias = hidden.Alias

		// The names of store.Group.
		const (
			// A is store.Member.
			A = hidden.A
			b = hidden.B // of store.Line
		)
	`)
	want := []string{"ErrPackage", "ErrOpen", "Place", "Secret", "Secret", "Closed", "Closed", "Alias", "Group", "Member"}
	var got []string
	for _, complaint := range file.complaints(map[string]bool{"store": true}) {
		got = append(got, regexp.MustCompile(`\w+\.(\w+)$`).FindStringSubmatch(complaint)[1])
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("found %q, want %q", got, want)
	}
}

// publicFile is a source file of a public package.
type publicFile struct {
	set  *token.FileSet
	file *ast.File
}

func parsePublic(t *testing.T, name string, source any) publicFile {
	t.Helper()
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, name, source, parser.SkipObjectResolution|parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	return publicFile{set, file}
}

// surfaces returns the names of the internal packages, and the files of the packages that programs outside import.
func surfaces(t *testing.T) (internal map[string]bool, public []publicFile) {
	t.Helper()
	internal = make(map[string]bool)
	names := make(map[string]bool) // of public packages
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != "..":
			if _, err := os.Stat(filepath.Join(path, "go.mod")); err == nil || strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata" {
				return filepath.SkipDir
			}
		case strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, "_test.go"):
			f := parsePublic(t, path, nil)
			switch {
			case slices.Contains(strings.Split(filepath.ToSlash(path), "/"), "internal"):
				internal[f.file.Name.Name] = true
			case f.file.Name.Name != "main":
				names[f.file.Name.Name] = true
				public = append(public, f)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for name := range names { // a comment means the public package of that name
		delete(internal, name)
	}
	return internal, public
}

// complaints returns what mentions a name of an internal package, each ending in that name.
func (f publicFile) complaints(internal map[string]bool) (all []string) {
	check := func(doc *ast.CommentGroup) {
		for _, m := range regexp.MustCompile(`\b(\w+)\.([A-Z]\w*)`).FindAllStringSubmatch(doc.Text(), -1) {
			if internal[m[1]] {
				all = append(all, f.set.Position(doc.Pos()).String()+": the comment names "+m[0])
			}
		}
	}
	imported := make(map[string]bool) // names of imported internal packages
	for _, s := range f.file.Imports {
		where, err := strconv.Unquote(s.Path.Value)
		if err != nil || !strings.Contains(where, "/internal/") {
			continue
		}
		if name := path.Base(where); s.Name == nil {
			imported[name] = true
		} else {
			imported[s.Name.Name] = true
		}
	}
	types := func(of ast.Node) {
		ast.Inspect(of, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.StructType:
				for _, field := range n.Fields.List {
					if len(field.Names) > 0 && !slices.ContainsFunc(field.Names, (*ast.Ident).IsExported) {
						field.Type = ast.NewIdent("hidden")
						continue
					}
					check(field.Doc)
					check(field.Comment)
				}
			case *ast.InterfaceType:
				for _, method := range n.Methods.List {
					check(method.Doc)
					check(method.Comment)
				}
			case *ast.SelectorExpr:
				if x, ok := n.X.(*ast.Ident); ok && imported[x.Name] {
					all = append(all, f.set.Position(n.Pos()).String()+": the declaration has the type "+x.Name+"."+n.Sel.Name)
				}
			}
			return true
		})
	}
	check(f.file.Doc)
	for _, d := range f.file.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			if d.Name.IsExported() && (d.Recv == nil || ast.IsExported(receiver(d.Recv.List[0].Type))) {
				check(d.Doc)
				types(d.Type)
			}
		case *ast.GenDecl:
			exported := false
			for _, s := range d.Specs {
				switch s := s.(type) {
				case *ast.TypeSpec:
					if s.Name.IsExported() {
						exported = true
						check(s.Doc)
						check(s.Comment)
						types(s.Type)
					}
				case *ast.ValueSpec:
					if slices.ContainsFunc(s.Names, (*ast.Ident).IsExported) {
						exported = true
						check(s.Doc)
						check(s.Comment)
						if s.Type != nil {
							types(s.Type)
						}
					}
				}
			}
			if exported {
				check(d.Doc)
			}
		}
	}
	return all
}
