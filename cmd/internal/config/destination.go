package config

import (
	"errors"
	"maps"
	"reflect"
	"regexp"
	"slices"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/field"
	"github.com/notifyd/notifyd/internal/laneconf"
	"github.com/notifyd/notifyd/internal/when"
)

// destinationName keeps the names usable in metrics, logs and file names.
const destinationName = `^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$`

var destinationNameRegexp = regexp.MustCompile(destinationName)

// fileDecoder is the decoder of a whole file: destinations need the registry.
type fileDecoder struct {
	decoder
	registry Registry
	partial  part
	language *when.Language // nil until there is an expression
}

// expressions returns the language of expressions. It takes some milliseconds to make.
func (d *fileDecoder) expressions() (l *when.Language, err error) {
	if d.language == nil {
		d.language, err = when.New()
	}
	return d.language, err
}

// destinations fills the list from the mapping under the key "destinations". With
// names, it holds only their types and order settings.
func (d *fileDecoder) destinations(n *node, names bool) Destinations {
	const path = "destinations"
	if n == nil || n.kind == kindNull {
		return nil
	}

	if n.kind != kindMap {
		d.wrong(n, path, "a mapping of names and destinations")
		return nil
	}

	var all Destinations
	for i, e := range n.entries {
		if d.misplaced(n.entries, i, path) {
			continue
		}

		at := join(path, e.name)
		if !destinationNameRegexp.MatchString(e.name) {
			d.list.add(e.value.key, at, "the destination name %s must be at most 63 letters, digits, - _ and . "+
				"and start with a letter or digit", showKey(e.name))
		}

		if e.value.kind == kindNull && i+1 < len(n.entries) && d.misplaced(n.entries, i+1, path) {
			continue // the settings below it are in the wrong column
		}

		read := d.destination
		if names {
			read = d.named
		}

		if dest, ok := read(e.name, e.value, at); ok {
			all = append(all, dest)
		}
	}

	return all
}

// destination decodes one destination, and validates it even if some keys had
// mistakes: the others may have some too.
func (d *fileDecoder) destination(name string, n *node, path string) (Destination, bool) {
	dest := Destination{Name: name, Lane: defaultLane()}
	if n.kind == kindNull {
		d.list.add(n.key, path, `the key "type" is missing in %s%s`, path, suggest("", d.registry.names()))
		return dest, false
	}

	if n.kind != kindMap {
		d.wrong(n, path, "a mapping of keys and values")
		return dest, false
	}

	fresh, ok := d.typeOf(n, path)
	if !ok {
		return dest, false
	}

	dest.Settings = fresh()
	dest.Backoff = delivery.Backoff{} // the file replaces the default as a whole

	header := struct {
		Type string `yaml:"type"`
	}{}
	fields := settingsOf(reflect.ValueOf(&header).Elem(), reflect.ValueOf(&dest.Lane).Elem(),
		reflect.Indirect(reflect.ValueOf(dest.Settings)))
	shareDefaults(fields)

	d.decodeStruct(n, path, fields)

	if s, ok := dest.Settings.(Dependent); ok {
		s.Complete(func(key string) bool { return n.get(key) != nil })
		shareDefaults(fields)
	}

	dest.Type = header.Type
	dest.Backoff = laneconf.Backoff(dest.Backoff)

	d.validate(dest.validateLane(), n, path)
	d.validate(errors.Join(dest.checkOrder(), dest.checkExact()), n, path)
	d.validate(dest.Settings.Validate(), n, path)
	d.compileKey(&dest.Lane, n, path)

	return dest, true
}

// named decodes the settings that [LoadRoutes] reads of a destination.
func (d *fileDecoder) named(name string, n *node, path string) (Destination, bool) {
	dest := Destination{Name: name, Lane: defaultLane()}
	if n.kind == kindNull {
		return dest, true
	}

	header := struct {
		Type string `yaml:"type"`
	}{}

	d.decodeStruct(n, path, settingsOf(reflect.ValueOf(&header).Elem(), reflect.ValueOf(&dest.Lane).Elem()))
	dest.Type = header.Type
	return dest, true
}

// typeOf looks up the type of a destination in the registry.
func (d *fileDecoder) typeOf(n *node, path string) (Type, bool) {
	at := join(path, "type")
	t := n.get("type")
	switch {
	case t == nil || t.kind == kindNull:
		d.list.add(n.key, at, `the key "type" is missing in %s%s`, path, suggest("", d.registry.names()))
		return nil, false
	case t.hidden:
		d.list.add(t.at, at, "%s: write the type out: it decides which other keys exist", at)
		return nil, false
	}

	word, ok := d.text(t, at)
	if !ok {
		return nil, false
	}

	fresh, ok := d.registry[word]
	if !ok {
		d.list.add(t.at, at, "unknown destination type %s in %s%s", quote(word), path, typeHint(word, d.registry.names()))
	}
	return fresh, ok
}

// shareDefaults picks one default for a setting that both the destination type
// and the lane have: that of the type, unless it is zero.
func shareDefaults(fields []setting) {
	for _, f := range fields {
		if len(f.targets) != 2 || f.targets[0].Type() != f.targets[1].Type() {
			continue
		}

		lane := f.targets[0]
		own := f.targets[1]
		if own.IsZero() {
			own.Set(lane)
		} else {
			lane.Set(own)
		}
	}
}

// validate reports the mistakes in err, whose paths are relative to n, except for
// settings that were reported before: the value that the decoder refused is not the file's. A setting that names files may have
// several mistakes.
func (d *fileDecoder) validate(err error, n *node, path string) {
	isKnown := func(e error) bool { return field.Path(e) != "" && d.list.explains(join(path, field.Path(e))) }
	for _, e := range slices.DeleteFunc(field.Split(err), isKnown) {
		relative := field.Path(e)
		at := path
		if relative != "" {
			at = join(path, relative)
		}

		text := scrub(oneLine(message(e)), field.Own(e), d.expand.values)
		d.list.add(locate(n, relative), at, "%s%s", prefix(at), text)
	}
}

// misplaced reports an entry below "destinations" that is a setting of the destination above it: its column is wrong. It
// returns false if the entry is a destination.
func (d *fileDecoder) misplaced(entries []entry, i int, path string) bool {
	e := entries[i]
	isDestination := e.value.kind == kindMap && e.value.get("type") != nil
	if i == 0 || isDestination || !d.isSetting(e.name) {
		return false
	}

	above := i - 1
	for above > 0 && d.isSetting(entries[above].name) {
		above--
	}

	d.list.add(e.value.key, join(path, e.name),
		"%q is a setting of a destination, in the column of their names: indent it if it belongs to %s",
		e.name, quote(entries[above].name))
	return true
}

// isSetting reports whether destinations have a setting of that name.
func (d *fileDecoder) isSetting(name string) bool {
	lane := defaultLane()
	all := []reflect.Value{reflect.ValueOf(&lane).Elem()}
	for _, fresh := range slices.Collect(maps.Values(d.registry)) {
		all = append(all, reflect.Indirect(reflect.ValueOf(fresh())))
	}

	return name == "type" || slices.ContainsFunc(settingsOf(all...), func(s setting) bool { return s.name == name })
}
