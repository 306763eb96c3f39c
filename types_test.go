package notifyd_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const (
	// A type above these is two types: a reader cannot hold it in mind. CONTRIBUTING.md names them.
	mostFields  = 25
	mostMethods = 40
)

// size of a type.
type size struct{ fields, methods int }

// TestSizesOfTypes holds each type of the module, tests aside, to what a reader can hold in mind.
func TestSizesOfTypes(t *testing.T) {
	t.Parallel()
	all := make(map[string]*size)
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != ".":
			if _, err := os.Stat(filepath.Join(path, "go.mod")); err == nil || strings.HasPrefix(d.Name(), ".") {
				return filepath.SkipDir
			}
		case strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, "_test.go"):
			return measure(path, all)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 100 {
		t.Fatalf("only %d types were found", len(all))
	}
	for name, s := range all {
		if s.fields > mostFields || s.methods > mostMethods {
			t.Errorf("%s has %d fields and %d methods, of %d and %d at the most: give a part of it a type of its own", name, s.fields, s.methods, mostFields, mostMethods)
		}
	}
}

// measure adds the fields and methods that a file declares.
func measure(path string, all map[string]*size) error {
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	of := func(name string) *size {
		name = filepath.ToSlash(filepath.Dir(path)) + "." + name
		if all[name] == nil {
			all[name] = &size{}
		}
		return all[name]
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			if n.Recv != nil {
				of(receiver(n.Recv.List[0].Type)).methods++
			}
			return false
		case *ast.TypeSpec:
			if s, ok := n.Type.(*ast.StructType); ok {
				for _, f := range s.Fields.List {
					of(n.Name.Name).fields += max(1, len(f.Names))
				}
			}
		}
		return true
	})
	return nil
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
