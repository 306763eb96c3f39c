// Command describe collects the descriptions of all settings into a JSON file, from which "notifyd config schema" and
// docs/configuration.md have them. "go generate ./cmd/notifyd" runs it:
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
	return os.WriteFile(args[1], text, 0o644) //nolint:gosec // a file of the repository
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
// setting without one, joined. Tests declare no settings.
func collect(root fs.FS) (descriptions, error) {
	found := make(descriptions)
	var missing []error
	err := fs.WalkDir(root, ".", func(name string, d fs.DirEntry, err error) error {
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
		if err != nil {
			return err
		}
		if bytes.Contains(text, []byte(`yaml:"`)) {
			missing = append(missing, add(found, name, text))
		}
		return nil
	})
	return found, errors.Join(append(missing, err)...)
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

// add adds the settings of a file.
func add(found descriptions, name string, text []byte) error {
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, name, text, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return err
	}

	var missing []error
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

		in := path.Dir(name)
		if found[in] == nil {
			found[in] = make(map[string]string)
		}
		for _, f := range structure.Fields.List {
			if !isSetting(f) {
				continue
			}
			setting := declared.Name.Name + "." + f.Names[0].Name
			found[in][setting] = firstParagraph(f.Doc.Text())
			if found[in][setting] == "" {
				missing = append(missing, fmt.Errorf("%s: %s: the setting has no description: add a doc comment",
					files.Position(f.Pos()), setting))
			}
		}
		return false
	})
	return errors.Join(missing...)
}

// isSetting reports whether a field has a name in its yaml tag.
func isSetting(f *ast.Field) bool {
	if f.Tag == nil || len(f.Names) != 1 {
		return false
	}
	tag, err := strconv.Unquote(f.Tag.Value)
	if err != nil {
		return false
	}
	key, _, _ := strings.Cut(reflect.StructTag(tag).Get("yaml"), ",")
	return key != "" && key != "-"
}

// firstParagraph returns the first paragraph of a comment on one line.
func firstParagraph(comment string) string {
	paragraph, _, _ := strings.Cut(comment, "\n\n")
	return strings.Join(strings.Fields(paragraph), " ")
}
