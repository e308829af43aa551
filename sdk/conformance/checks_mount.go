package conformance

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/sdk/storage"
)

// stored are the checks that those of a volume's mounts and data depend on.
var stored = append([]string{"work.repeat", "work.killed"}, worked...)

var mountChecks = []*Check{
	{
		ID:    "mount.once",
		kind:  storage.Kind,
		Says:  "Staged and published again, a volume is mounted once, and its users notice nothing.",
		Fix:   "Look into the mount table (/proc/self/mountinfo) before you mount, and leave a mount that is right as it is.",
		after: stored,
		run:   inLab(checkMountOnce),
	},
	{
		ID:    "mount.gone",
		kind:  storage.Kind,
		Says:  "After Unpublish the target path is gone, and after Unstage nothing is mounted at the staging path.",
		Fix:   "In Unpublish, unmount and then remove the target path, which Publish has made. In Unstage, unmount. Report success only when that is done.",
		after: stored,
		run:   inLab(checkMountGone),
	},
	{
		ID:    "mount.together",
		kind:  storage.Kind,
		Says:  "Concurrent calls for one volume succeed or fail with Aborted, and each of them has its own effect.",
		Fix:   "Hold a lock for each volume while you look at mounts and change them. Unpublish touches no target but its own.",
		after: append([]string{"mount.once", "mount.gone"}, stored...),
		run:   inLab(checkMountTogether),
	},
}

func checkMountOnce(ctx context.Context, l *lab) error {
	v, content, err := l.filled(ctx)
	if err != nil {
		return err
	}
	f, err := os.Open(filepath.Join(v.target("a"), file))
	if err != nil {
		return err
	}
	defer f.Close()
	before, err := f.Stat()
	if err != nil {
		return err
	}
	for what, again := range map[string]func() error{
		"published": func() error { return l.publish(ctx, v, "a") },
		"staged":    func() error { return l.stage(ctx, v) },
	} {
		if err := again(); err != nil {
			return fmt.Errorf("%s again: %w", what, err)
		}
		if v.staging != "" {
			if infos, err := mountsAt(v.staging); err != nil || len(infos) > 1 {
				return errors.Join(fmt.Errorf("%s again: %d mounts are stacked at the staging path", what, len(infos)), err)
			}
		}
		if err := v.has("a", content, what+" again"); err != nil {
			return err
		}
		after, err := os.Stat(f.Name())
		if err != nil {
			return err
		}
		if !os.SameFile(before, after) {
			return fmt.Errorf("%s again: its users have another file open than is there now", what)
		}
	}
	return nil
}

func checkMountGone(ctx context.Context, l *lab) error {
	v, _, err := l.filled(ctx)
	if err != nil {
		return err
	}
	if err := l.unpublish(ctx, v, "a"); err != nil {
		return err
	}
	if err := v.left("a"); err != nil {
		return fmt.Errorf("after Unpublish %w", err)
	}
	if v.staging == "" {
		return nil
	}
	if err := l.unstage(ctx, v); err != nil {
		return err
	}
	left, err := mountsBelow(v.dir)
	if err == nil && len(left) > 0 {
		err = fmt.Errorf("after Unstage it is still mounted at the %s path", filepath.Base(left[0]))
	}
	return err
}

// left fails if a target path exists.
func (v *volume) left(name string) error {
	_, err := os.Lstat(v.target(name))
	switch {
	case err == nil:
		return errors.New("the target path still exists")
	case errors.Is(err, fs.ErrNotExist):
		return nil
	}
	return err
}

// calls are calls by what they do.
type calls map[string]volumeCall

// together makes calls at the same time. Like a host it repeats those that were Aborted; it returns any other error.
func (l *lab) together(ctx context.Context, calls calls) error {
	var mu sync.Mutex
	var errs []error
	var wait sync.WaitGroup
	begin := make(chan struct{})
	for what, call := range calls {
		for range 8 { // a host repeats a call whose answer it has not received
			wait.Go(func() {
				<-begin
				err := insist(ctx, func(ctx context.Context) error {
					err := call(ctx, l.p.conn)
					switch status.Code(err) {
					case codes.Unavailable, codes.ResourceExhausted: // not for another call's sake
						return errors.New(err.Error())
					}
					return err
				})
				if err != nil {
					mu.Lock()
					defer mu.Unlock()
					errs = append(errs, fmt.Errorf("%s beside other calls: %w", what, err))
				}
			})
		}
	}
	close(begin)
	wait.Wait()
	if len(errs) > 0 {
		return errs[0]
	}
	return nil
}

func checkMountTogether(ctx context.Context, l *lab) error {
	v, err := l.volume()
	if err != nil {
		return err
	}
	l.sharable(v)
	if err := l.made(ctx, v); err != nil {
		return err
	}
	publish := func(name string) volumeCall {
		v.targets[name] = true
		return func(ctx context.Context, conn grpc.ClientConnInterface) error {
			return v.publishOnly(ctx, conn, name, false)
		}
	}
	unpublish := func(name string) volumeCall {
		return func(ctx context.Context, conn grpc.ClientConnInterface) error {
			return v.unpublishOnly(ctx, conn, name)
		}
	}
	for n := 0; n < rounds && v.staging != ""; n++ {
		if err := l.unstage(ctx, v); err != nil {
			return err
		}
		if err := l.together(ctx, calls{"Stage": v.stage}); err != nil {
			return err
		}
		if infos, err := mountsAt(v.staging); err != nil || len(infos) > 1 {
			return errors.Join(fmt.Errorf("after concurrent calls %d mounts are stacked at the staging path", len(infos)), err)
		}
	}
	// Does the driver publish at two targets?
	both := true
	if err := l.publish(ctx, v, "a"); err != nil {
		return err
	}
	if err := l.second(ctx, v, "b"); err != nil {
		if !errors.As(err, new(skip)) {
			return err
		}
		both = false
		delete(v.targets, "b")
	}
	if err := l.together(ctx, calls{"Unpublish of a": unpublish("a")}); err != nil {
		return err
	}
	if !both {
		for range rounds {
			if err := l.together(ctx, calls{"Publish": publish("a")}); err != nil {
				return err
			}
			if _, err := once(v.target("a")); err != nil {
				return fmt.Errorf("after concurrent calls %w", err)
			}
			if err := l.together(ctx, calls{"Unpublish": unpublish("a")}); err != nil {
				return err
			}
		}
		return none(v.target("a"))
	}
	for range rounds {
		if err := l.publish(ctx, v, "b"); err != nil {
			return err
		}
		if err := l.crossed(ctx, v, publish, unpublish); err != nil {
			return err
		}
	}
	return nil
}

// rounds is how often calls are made together, since they rarely meet at the wrong moment.
const rounds = 10

// crossed publishes a volume at two targets while it is unpublished at a third, and unpublishes both together.
func (l *lab) crossed(ctx context.Context, v *volume, publish, unpublish func(name string) volumeCall) error {
	content := fresh()
	if err := v.write("b", content); err != nil {
		return err
	}
	if err := l.together(ctx, calls{
		"Publish of a": publish("a"), "Publish of c": publish("c"), "Unpublish of b": unpublish("b"),
	}); err != nil {
		return err
	}
	for _, name := range []string{"a", "c"} {
		if _, err := once(v.target(name)); err != nil {
			return fmt.Errorf("after concurrent calls %w", err)
		}
		if err := v.has(name, content, "after concurrent calls"); err != nil {
			return err
		}
	}
	if err := v.left("b"); err != nil {
		return fmt.Errorf("after concurrent calls %w", err)
	}
	if err := l.together(ctx, calls{"Unpublish of a": unpublish("a"), "Unpublish of c": unpublish("c")}); err != nil {
		return err
	}
	return errors.Join(none(v.target("a")), none(v.target("c")))
}
