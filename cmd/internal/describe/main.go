// Command describe collects the descriptions of all settings into a JSON file, from which "notifyd config schema" and
// docs/configuration.md have them, and the summaries of the destinations' pages into the table of docs/destinations.md.
// "go generate ./cmd/notifyd" runs it:
//
//	describe ROOT FILE
//
// A setting is a field with a name in its yaml tag. Its description is the first paragraph of its doc comment, with keys
// and values of notifyd.yaml in backticks; the paragraphs below are for Go programs.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
)

// descriptions are texts by the folder of a package, and by a type and its field, such as "Lane.Batch".
type descriptions map[string]map[string]string

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "describe:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 2 {
		return errors.New("usage: describe ROOT FILE")
	}
	found, err := collect(os.DirFS(args[0]))
	if err != nil {
		return err
	}
	text, err := encode(found)
	if err != nil {
		return err
	}
	if err := os.WriteFile(args[1], text, 0o644); err != nil { //nolint:gosec // a file of the repository
		return err
	}

	page, err := overview(os.DirFS(args[0]))
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(args[0], overviewPage), page, 0o644) //nolint:gosec // the same
}

// encode returns the content of the file.
func encode(found descriptions) ([]byte, error) {
	var text bytes.Buffer
	e := json.NewEncoder(&text)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	err := e.Encode(found)
	return text.Bytes(), err
}

// collect returns the descriptions of the settings that the packages of a module declare. It returns an error for each
// setting without one, joined.
func collect(root fs.FS) (descriptions, error) {
	all, err := settings(root)
	if err != nil {
		return nil, err
	}

	found := make(descriptions)
	var missing []error
	for _, s := range all {
		paragraph, _, _ := strings.Cut(s.comment, "\n\n")
		description := strings.Join(strings.Fields(paragraph), " ")
		if description == "" {
			missing = append(missing, fmt.Errorf("%s: %s: the setting has no description: add a doc comment", s.place, s.name))
		}
		if found[s.folder] == nil {
			found[s.folder] = make(map[string]string)
		}
		found[s.folder][s.name] = description
	}
	return found, errors.Join(missing...)
}

// setting is the declaration of a setting.
type setting struct {
	folder  string // of the package
	name    string // the type and the field
	key     string // in notifyd.yaml
	comment string
	place   token.Position
}

// settings returns the settings that the packages of a module declare. Tests declare none.
func settings(root fs.FS) (all []setting, err error) {
	err = fs.WalkDir(root, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			return skip(root, name)
		}
		if !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") {
			return nil
		}

		text, err := fs.ReadFile(root, name)
		if err != nil || !bytes.Contains(text, []byte(`yaml:"`)) {
			return err
		}
		inFile, err := settingsOf(name, text)
		all = append(all, inFile...)
		return err
	})
	return all, err
}

// skip returns fs.SkipDir for a directory that has no package of the module.
func skip(root fs.FS, name string) error {
	base := path.Base(name)
	_, err := fs.Stat(root, path.Join(name, "go.mod"))
	isModule := err == nil
	isHidden := strings.HasPrefix(base, ".") || base == "testdata" || base == "node_modules"
	if name != "." && (isModule || isHidden) {
		return fs.SkipDir
	}
	return nil
}

// settingsOf returns the settings that a file declares.
func settingsOf(name string, text []byte) (all []setting, err error) {
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, name, text, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}

	ast.Inspect(file, func(n ast.Node) bool {
		declared, isType := n.(*ast.TypeSpec)
		if !isType {
			_, isFunction := n.(*ast.FuncDecl)
			return !isFunction
		}
		structure, isStruct := declared.Type.(*ast.StructType)
		if !isStruct {
			return false
		}

		for _, f := range structure.Fields.List {
			key := keyOf(f)
			if key == "" {
				continue
			}
			all = append(all, setting{
				folder:  path.Dir(name),
				name:    declared.Name.Name + "." + f.Names[0].Name,
				key:     key,
				comment: f.Doc.Text(),
				place:   files.Position(f.Pos()),
			})
		}
		return false
	})
	return all, nil
}

// keyOf returns the name in the yaml tag of a field, "" without one.
func keyOf(f *ast.Field) string {
	if f.Tag == nil || len(f.Names) != 1 {
		return ""
	}
	tag, err := strconv.Unquote(f.Tag.Value)
	if err != nil {
		return ""
	}
	key, _, _ := strings.Cut(reflect.StructTag(tag).Get("yaml"), ",")
	if key == "-" {
		return ""
	}
	return key
}
