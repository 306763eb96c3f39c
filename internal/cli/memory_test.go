package cli

import (
	"testing"
	"testing/fstest"
)

// TestMemoryLimit: the lowest limit of a group and those around it counts, in both versions of control groups.
func TestMemoryLimit(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		files map[string]string
		want  int64
	}{
		"no groups":           {nil, 0},
		"version 2":           {map[string]string{"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/memory.max": "300\n", "sys/fs/cgroup/a/b/memory.max": "max\n"}, 300},
		"version 2, the own":  {map[string]string{"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/memory.max": "300\n", "sys/fs/cgroup/a/b/memory.max": "200\n"}, 200},
		"version 2, a pod":    {map[string]string{"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "268435456\n"}, 268435456},
		"version 2, no limit": {map[string]string{"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "max\n"}, 0},
		"version 1": {map[string]string{
			"proc/self/cgroup": "5:cpu:/x\n4:memory:/kubepods/x\n0::/\n", "sys/fs/cgroup/memory/memory.limit_in_bytes": "500\n", "sys/fs/cgroup/cpu/x/memory.limit_in_bytes": "1\n",
		}, 500},
		"version 1, no limit": {map[string]string{"proc/self/cgroup": "4:memory:/\n", "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n"}, 0},
		"outside of the root": {map[string]string{"proc/self/cgroup": "0::/../..\n", "sys/fs/cgroup/memory.max": "7\n"}, 7},
		"unreadable":          {map[string]string{"proc/self/cgroup": "x\n0::/\n", "sys/fs/cgroup/memory.max": "many\n"}, 0},
	} {
		root := make(fstest.MapFS)
		for file, text := range c.files {
			root[file] = &fstest.MapFile{Data: []byte(text)}
		}
		if got := memoryLimit(root); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}
