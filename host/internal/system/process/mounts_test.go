package process

import (
	"context"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pannier/pannier/internal/procfs"
	"github.com/pannier/pannier/test/lib/check"
)

// A process that has /dev/fuse open stays when its parent is stopped, with what it has started; all others end.
func TestStopKeepingMounts(t *testing.T) {
	if f, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0); err != nil {
		t.Skipf("needs /dev/fuse (%v); not covered: children that serve mounts", err)
	} else {
		f.Close()
	}
	sleepers := func(ref Ref) (names []string) {
		for _, pid := range Left(ref) {
			args, _ := os.ReadFile(procfs.Dir(pid) + "/cmdline")
			names = append(names, strings.ReplaceAll(strings.Trim(string(args), "\x00"), "\x00", " "))
		}
		slices.Sort(names)
		return names
	}
	p := mustStart(t, shell(t, `
		/bin/sh -c 'sleep 1001 & exec 3<>/dev/fuse; sleep 1002 3>&- & exec sleep 1003' &
		sleep 1004 &
		wait`))
	check.Eventually(t, "all have been started", func() bool {
		all := sleepers(p.Ref())
		return len(all) == 5 && slices.Equal(all[1:], []string{"sleep 1001", "sleep 1002", "sleep 1003", "sleep 1004"})
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	kept, err := p.StopKeepingMounts(ctx)
	check.NoError(t, err)
	if got := sleepers(p.Ref()); !slices.Equal(got, []string{"sleep 1001", "sleep 1002", "sleep 1003"}) || len(kept) != 3 {
		t.Errorf("left are %q, reported %v", got, kept)
	}
	check.NoError(t, Clean(ctx, p.Ref()))
	if got := sleepers(p.Ref()); len(got) > 0 {
		t.Errorf("after the cleaning there are %q", got)
	}
}

// Without a child that serves mounts everything is stopped.
func TestStopKeepingNoMounts(t *testing.T) {
	p := mustStart(t, shell(t, `sleep 1000 & wait`))
	kept, err := p.StopKeepingMounts(t.Context())
	if left := Left(p.Ref()); err != nil || len(kept) > 0 || len(left) > 0 {
		t.Errorf("kept %v, left %v, %v", kept, left, err)
	}
}
