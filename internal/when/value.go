package when

import (
	"bytes"
	"errors"
	"hash/maphash"
	"reflect"
	"strconv"

	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/common/types/traits"
)

const (
	// errText is the error for a value that cannot be read.
	errText = "the payload is not JSON, or has a number that is out of range"
	// errBytes is the error for an event whose payload is not JSON.
	errBytes = "the payload is not JSON by its content type: a condition for such events can ask for event and headers alone"
	// maxAdded bounds the lists of a payload that an expression adds to each other.
	maxAdded = 100_000
)

func number(s string) (ref.Val, bool) {
	if n, err := strconv.ParseInt(s, 10, 64); err == nil {
		return types.Int(n), true
	}
	if c := s[0]; c != '-' && (c < '0' || c > '9') { // ParseFloat accepts Inf and NaN
		return nil, false
	}
	f, err := strconv.ParseFloat(s, 64)
	return types.Double(f), err == nil
}

// equal compares two values as CEL does. An error of a value, such as a number that is out of range, is the result.
func equal(a, b ref.Val) ref.Val {
	switch {
	case types.IsError(a):
		return a
	case types.IsError(b):
		return b
	}

	switch x := a.(type) {
	case *object:
		return x.compare(b)
	case *list:
		return x.compare(b)
	case types.String:
		if y, ok := b.(types.String); !ok || len(x) != len(y) {
			return types.False
		}
	}

	return types.Equal(a, b)
}

// object is a JSON object. A member is read when an expression asks for it.
type object struct {
	d       *document
	at      span
	scanned bool
	broken  bool  // it is not JSON
	asked   int32 // how many members were looked for
	members []member
	table   *table // nil at first
}

// table finds the member of a name.
type table struct {
	seed  maphash.Seed // no writer of events knows which keys collide
	slots []int32      // indexes of members plus 1, by the hash of their name; 0 for none
	names int          // how many
}

// member is a member of an object: the bounds of its key and its value in the text, and the value once it was read.
type member struct {
	key, keyEnd, text, textEnd int32
	value                      ref.Val
}

func (o *object) scan() {
	if o.scanned {
		return
	}
	o.scanned = true

	n := int(min(8, 1+(o.at.to-o.at.from)/16))
	if o.at.to-o.at.from > smallText { // as for a list
		n = 0
		o.d.members(int(o.at.from), func(int, int, int, int) { n++ })
	}

	o.members = make([]member, 0, n)
	o.broken = !o.d.members(int(o.at.from), func(key, keyEnd, text, textEnd int) {
		m := member{key: int32(key), keyEnd: int32(keyEnd), text: int32(text), textEnd: int32(textEnd)} //nolint:gosec // see span
		o.members = append(o.members, m)
	})
}

// searches is how many members are looked for one by one before the object gets a table, which costs about as much.
const searches = 8

// find returns the index of the member of a name, or -1. If a name occurs twice, the last value counts, as for jsonb.
func (o *object) find(name []byte) int {
	if o.table == nil && len(o.members) > searches {
		o.asked++
		if o.asked > searches {
			o.tabulate()
		}
	}

	if o.table != nil {
		return int(o.table.slots[o.slot(name)]) - 1
	}

	o.d.spend(len(o.members))
	for i := len(o.members) - 1; i >= 0; i-- {
		if m := &o.members[i]; isKey(o.d.text[m.key:m.keyEnd], name) {
			return i
		}
	}

	return -1
}

// tabulate makes the table of members.
func (o *object) tabulate() {
	size := 1
	for size < 2*len(o.members) {
		size *= 2
	}
	o.table = &table{seed: maphash.MakeSeed(), slots: make([]int32, size)}

	for i := range o.members {
		name, ok := o.name(i)
		if !ok {
			continue
		}

		at := o.slot(name)
		if o.table.slots[at] == 0 {
			o.table.names++
		}
		o.table.slots[at] = int32(i) + 1
	}
}

// slot returns where the table has a name, or would have it.
func (o *object) slot(name []byte) (at int) {
	o.d.spend(len(name))
	slots := o.table.slots
	mask := len(slots) - 1
	for at = int(maphash.Bytes(o.table.seed, name)) & mask; slots[at] != 0; at = (at + 1) & mask { //nolint:gosec // masked
		m := &o.members[slots[at]-1]
		o.d.spend(int(m.keyEnd - m.key))
		if isKey(o.d.text[m.key:m.keyEnd], name) {
			return at
		}
	}
	return at
}

// name returns the name of a member.
func (o *object) name(i int) ([]byte, bool) {
	m := &o.members[i]
	o.d.spend(int(m.keyEnd - m.key))
	return unquoted(o.d.text[m.key:m.keyEnd])
}

// distinct calls f for the names of the members, each once, in the order of the text, until f returns false.
func (o *object) distinct(f func(i int, name []byte) bool) {
	o.scan()
	for i := range o.members {
		if name, ok := o.name(i); ok && o.find(name) == i && !f(i, name) {
			return
		}
	}
}

// size returns how many names the members have.
func (o *object) size() int {
	if o.scan(); len(o.members) > searches && o.table == nil {
		o.tabulate()
	}
	if o.table != nil {
		return o.table.names
	}
	n := 0
	o.distinct(func(int, []byte) bool {
		n++
		return true
	})
	return n
}

// Find implements traits.Mapper.
func (o *object) Find(key ref.Val) (ref.Val, bool) {
	name, ok := key.(types.String)
	if !ok {
		return types.MaybeNoSuchOverloadErr(key), false
	}

	o.scan()
	if o.broken {
		return types.NewErrFromString(errText), false
	}

	i := o.find([]byte(name))
	if i < 0 {
		return nil, false
	}

	v := o.read(i)
	return v, !types.IsError(v)
}

// read returns the value of a member.
func (o *object) read(i int) ref.Val {
	m := &o.members[i]
	if m.value == nil {
		m.value = o.d.value(int(m.text), int(m.textEnd))
	}
	return m.value
}

// Get implements traits.Indexer.
func (o *object) Get(key ref.Val) ref.Val {
	v, found := o.Find(key)
	if v == nil && !found {
		return types.NewErrFromString("no such key")
	}
	return v
}

// Contains implements traits.Container.
func (o *object) Contains(key ref.Val) ref.Val {
	v, found := o.Find(key)
	if v != nil && !found {
		return v
	}
	return types.Bool(found)
}

// Fold implements traits.Foldable: macros such as exists iterate over the names.
func (o *object) Fold(f traits.Folder) {
	keys, ok := f.(interface{ FoldKeyOnly() bool })
	keyOnly := ok && keys.FoldKeyOnly()
	o.distinct(func(i int, name []byte) bool {
		var value any
		if !keyOnly {
			value = o.read(i)
		}
		return f.FoldEntry(types.String(name), value)
	})
}

// Iterator implements traits.Iterable.
func (o *object) Iterator() traits.Iterator {
	var all []ref.Val
	o.distinct(func(_ int, name []byte) bool {
		all = append(all, types.String(name))
		return true
	})
	return types.NewRefValList(types.DefaultTypeAdapter, all).Iterator()
}

// Size implements traits.Sizer.
func (o *object) Size() ref.Val { return types.Int(o.size()) }

// Equal implements ref.Val.
func (o *object) Equal(other ref.Val) ref.Val {
	if p, ok := other.(*object); ok && p.d == o.d && o.d.isSame(o.at, p.at) {
		return types.True
	}
	return o.compare(other)
}

// compare reports whether another object has the same members.
func (o *object) compare(other ref.Val) ref.Val {
	p, ok := other.(traits.Mapper)
	if !ok || o.Size() != p.Size() {
		return types.False
	}

	same, _ := p.(*object)
	var result ref.Val = types.True
	o.distinct(func(i int, name []byte) bool {
		if same != nil && same.d == o.d {
			result = o.compareMember(i, same, same.find(name))
			return result == types.True
		}

		switch theirs, found := p.Find(types.String(name)); {
		case types.IsError(theirs):
			result = theirs
		case !found:
			result = types.False
		default:
			result = equal(o.read(i), theirs)
		}
		return result == types.True
	})

	return result
}

// compareMember compares a member with one of another object of the payload, -1 for none. It keeps no values.
func (o *object) compareMember(i int, p *object, j int) ref.Val {
	if j < 0 {
		return types.False
	}

	a := span{o.members[i].text, o.members[i].textEnd}
	b := span{p.members[j].text, p.members[j].textEnd}
	isShort := a.to-a.from < longSpan
	if isShort && o.d.isSame(a, b) {
		return types.True
	}

	areTexts := o.d.text[a.from] == '"' && o.d.text[b.from] == '"'
	if areTexts {
		o.d.spend(int(a.to - a.from + b.to - b.from))
		x, xOK := unquoted(o.d.of(a))
		y, yOK := unquoted(o.d.of(b))
		if xOK && yOK {
			return types.Bool(bytes.Equal(x, y))
		}
	}

	return equal(o.d.value(int(a.from), int(a.to)), o.d.value(int(b.from), int(b.to)))
}

// ConvertToNative implements ref.Val.
func (o *object) ConvertToNative(reflect.Type) (any, error) { return nil, errNative }

// ConvertToType implements ref.Val.
func (o *object) ConvertToType(kind ref.Type) ref.Val { return convert(o, kind) }

// Type implements ref.Val.
func (*object) Type() ref.Type { return types.MapType }

// Value implements ref.Val.
func (o *object) Value() any { return o.d.of(o.at) }

// list is a JSON list. An element is read when an expression asks for it.
type list struct {
	d        *document
	is       span
	elements []span
}

// scan finds the elements. It returns an error if the text is not a list. It counts those of a large list first: a slice
// that grows takes several times their memory.
func (l *list) scan() ref.Val {
	if l.is.to-l.is.from > smallText {
		n := 0
		l.d.elements(int(l.is.from), func(int, int) { n++ })
		l.elements = make([]span, 0, n)
	}
	ok := l.d.elements(int(l.is.from), func(text, textEnd int) {
		l.elements = append(l.elements, span{int32(text), int32(textEnd)}) //nolint:gosec // see span
	})
	if !ok {
		return types.NewErrFromString(errText)
	}
	return l
}

func (l *list) at(i int) ref.Val { return l.d.value(int(l.elements[i].from), int(l.elements[i].to)) }

// Get implements traits.Indexer.
func (l *list) Get(index ref.Val) ref.Val {
	i, err := types.GetOrError(index)
	if err != nil {
		return types.ValOrErr(index, "%v", err)
	}
	if i < 0 || i >= len(l.elements) {
		return types.NewErrFromString("index out of bounds")
	}
	return l.at(i)
}

// Contains implements traits.Container.
func (l *list) Contains(value ref.Val) ref.Val {
	for i := range l.elements {
		if equal(l.at(i), value) == types.True {
			return types.True
		}
	}
	return types.False
}

// Size implements traits.Sizer.
func (l *list) Size() ref.Val { return types.Int(len(l.elements)) }

// Fold implements traits.Foldable: macros such as exists iterate over the elements.
func (l *list) Fold(f traits.Folder) {
	for i := range l.elements {
		if !f.FoldEntry(types.Int(i), l.at(i)) {
			return
		}
	}
}

// Iterator implements traits.Iterable.
func (l *list) Iterator() traits.Iterator { return l.copy().Iterator() }

// Add implements traits.Adder.
func (l *list) Add(other ref.Val) ref.Val { return l.copy().Add(other) }

// copy returns a list of the values.
func (l *list) copy() traits.Lister {
	if len(l.elements) > maxAdded {
		cancel(errSteps)
	}
	all := make([]ref.Val, len(l.elements))
	for i := range all {
		all[i] = l.at(i)
	}
	return types.NewRefValList(types.DefaultTypeAdapter, all)
}

// Equal implements ref.Val.
func (l *list) Equal(other ref.Val) ref.Val {
	if p, ok := other.(*list); ok && p.d == l.d && l.d.isSame(l.is, p.is) {
		return types.True
	}
	return l.compare(other)
}

// compare reports whether another list has the same elements.
func (l *list) compare(other ref.Val) ref.Val {
	p, ok := other.(traits.Lister)
	if !ok || l.Size() != p.Size() {
		return types.False
	}
	for i := range l.elements {
		if result := equal(l.at(i), p.Get(types.Int(i))); result != types.True {
			return result
		}
	}
	return types.True
}

// ConvertToNative implements ref.Val.
func (l *list) ConvertToNative(reflect.Type) (any, error) { return nil, errNative }

// ConvertToType implements ref.Val.
func (l *list) ConvertToType(kind ref.Type) ref.Val { return convert(l, kind) }

// Type implements ref.Val.
func (*list) Type() ref.Type { return types.ListType }

// Value implements ref.Val.
func (l *list) Value() any { return l.d.of(l.is) }

// errNative is the error of a conversion that no expression has.
var errNative = errors.New("when: a value of the payload has no Go type")

// convert converts a list or an object to a type.
func convert(v ref.Val, kind ref.Type) ref.Val {
	switch kind {
	case v.Type():
		return v
	case types.TypeType:
		return v.Type().(ref.Val) //nolint:forcetypeassert // types are values
	}
	return types.NewErrFromString("no such overload")
}

var (
	_ traits.Mapper   = (*object)(nil)
	_ traits.Foldable = (*object)(nil)
	_ traits.Lister   = (*list)(nil)
	_ traits.Foldable = (*list)(nil)
)
