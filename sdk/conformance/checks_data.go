package conformance

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/sdk/storage"
)

var dataChecks = []*Check{
	{
		ID:    "data.kept",
		kind:  storage.Kind,
		Says:  "What a workload has written is there after Unpublish and Publish, after Unstage and Stage, after Detach and Attach, and after the plugin is killed.",
		Fix:   "Mount the volume itself: no copy, no file system of the plugin. Make a file system only on a device that is verifiably empty. Only Delete deletes data.",
		after: stored,
		run:   inLab(checkKept),
	},
	{
		ID:    "data.shared",
		kind:  storage.Kind,
		Says:  "Two workloads with one volume see each other's files, and the end of one changes nothing for the other.",
		Fix:   "Give every target the same file system (a bind mount of the staged one), and touch only the call's own target in Unpublish.",
		after: append([]string{"data.kept"}, stored...),
		run:   inLab(checkShared),
	},
	{
		ID:    "data.own",
		kind:  storage.Kind,
		Says:  "Two volumes have nothing in common: a workload sees only the files of its own.",
		Fix:   "Derive the place of the data from the volume's external id, which is unique, and from nothing else.",
		after: append([]string{"data.kept"}, stored...),
		run:   inLab(checkOwn),
	},
	{
		ID:    "data.read-only",
		kind:  storage.Kind,
		Says:  "A read-only Publish, of a volume with a writer or without one, shows the data and refuses every change.",
		Fix:   "Pass read_only and the access mode to the mount. A bind mount needs a second mount call with MS_REMOUNT|MS_BIND|MS_RDONLY (mount(2)).",
		after: append([]string{"data.kept"}, stored...),
		run:   inLab(checkReadOnly),
	},
	{
		ID:    "data.block",
		kind:  storage.Kind,
		Says:  "A block device keeps what is written to it, and refuses writes if it is published read-only.",
		Fix:   "Bind the device file to the target. The flag ro of such a mount does not protect the device: use a device that is read-only itself.",
		after: append([]string{"data.kept"}, stored...),
		run:   inLab(checkBlock),
	},
}

func checkKept(ctx context.Context, l *lab) error {
	v, content, err := l.filled(ctx)
	if err != nil {
		return err
	}
	again := func(from, to string, between ...func(context.Context, *volume) error) error {
		if err := l.unpublish(ctx, v, from); err != nil {
			return err
		}
		for _, do := range between {
			if err := do(ctx, v); err != nil {
				return err
			}
		}
		return l.publish(ctx, v, to)
	}
	if err := again("a", "b"); err != nil {
		return err
	}
	if err := v.has("b", content, "after Unpublish and Publish"); err != nil {
		return err
	}
	if v.staging != "" {
		if err := again("b", "a", l.unstage, l.stage); err != nil {
			return err
		}
		if err := v.has("a", content, "after Unstage and Stage"); err != nil {
			return err
		}
	} else if err := again("b", "a"); err != nil {
		return err
	}
	if v.attaches {
		if err := again("a", "a", l.unready, l.ready); err != nil {
			return err
		}
		if err := v.has("a", content, "after Detach and Attach"); err != nil {
			return err
		}
	}
	content = fresh()
	if err := v.write("a", content); err != nil {
		return err
	}
	if err := l.restart(ctx); err != nil {
		return err
	}
	const killed = "after the plugin was killed"
	if err := v.has("a", content, killed); err != nil {
		return err
	}
	if err := again("a", "b", l.unready, l.ready); err != nil {
		return fmt.Errorf("%s: %w", killed, err)
	}
	return v.has("b", content, killed+", and the volume was published by another process")
}

func checkShared(ctx context.Context, l *lab) error {
	v, err := l.volume()
	if err != nil {
		return err
	}
	l.sharable(v)
	if err := l.made(ctx, v); err != nil {
		return err
	}
	if err := l.publish(ctx, v, "a"); err != nil {
		return err
	}
	first := fresh()
	if err := v.write("a", first); err != nil {
		return err
	}
	if err := l.second(ctx, v, "b"); err != nil {
		return err
	}
	if err := v.has("b", first, "written by one workload and read by the other"); err != nil {
		return err
	}
	second := fresh()
	if err := v.write("b", second); err != nil {
		return err
	}
	if err := v.has("a", second, "changed by one workload and read by the other"); err != nil {
		return err
	}
	if err := l.unpublish(ctx, v, "b"); err != nil {
		return err
	}
	return v.has("a", second, "after the Unpublish of the other workload")
}

func checkOwn(ctx context.Context, l *lab) error {
	v, err := l.another()
	if err != nil {
		return err
	}
	w, err := l.another()
	if err != nil {
		return err
	}
	content := fresh()
	for _, v := range []*volume{v, w} {
		if err := l.made(ctx, v); err != nil {
			return err
		}
		if err := l.publish(ctx, v, "a"); err != nil {
			return err
		}
	}
	if v.ExternalID == w.ExternalID {
		return fmt.Errorf("two volumes have the external id %q", v.ExternalID)
	}
	if err := v.write("a", content); err != nil {
		return err
	}
	return w.lacks("a", "a file of one volume is in the other too")
}

func checkReadOnly(ctx context.Context, l *lab) error {
	v, content, err := l.filled(ctx)
	if err != nil {
		return err
	}
	if err := l.unpublish(ctx, v, "a"); err != nil {
		return err
	}
	refused := func(what string) error {
		if err := l.publishReadOnly(ctx, v, "a"); err != nil {
			return err
		}
		if err := v.has("a", content, what); err != nil {
			return err
		}
		if err := refusesWrites(v.target("a")); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		return v.has("a", content, what)
	}
	if err := refused("published read-only"); err != nil {
		return err
	}
	if err := l.unpublished(ctx, v); err != nil {
		return err
	}
	v.Capability.AccessMode = storage.SingleNodeReaderOnly
	if err := l.ready(ctx, v); err != nil {
		return err
	}
	return refused("in a mode without a writer")
}

// deviceSize is how much of a block device is written.
const deviceSize = 64 << 10

func checkBlock(ctx context.Context, l *lab) error {
	v, err := l.another()
	if err != nil {
		return err
	}
	v.Capability.AttachmentMode = storage.BlockDevice
	switch err := l.made(ctx, v); status.Code(err) {
	case codes.OK:
	case codes.InvalidArgument, codes.FailedPrecondition, codes.Unimplemented:
		return skip("needs a driver with block devices: " + status.Convert(err).Message())
	default:
		return err
	}
	if err := l.publish(ctx, v, "a"); err != nil {
		return err
	}
	content := fresh()
	if err := writeDevice(v.target("a"), content); err != nil {
		return fmt.Errorf("write to the device: %w", err)
	}
	if err := l.unpublished(ctx, v); err != nil {
		return err
	}
	if err := v.left("a"); err != nil {
		return fmt.Errorf("after Unpublish %w", err)
	}
	if err := l.ready(ctx, v); err != nil {
		return err
	}
	if err := l.publishReadOnly(ctx, v, "a"); err != nil {
		return err
	}
	if err := readDevice(v.target("a"), content); err != nil {
		return fmt.Errorf("after Unstage and Stage: %w", err)
	}
	if writeDevice(v.target("a"), fresh()) == nil {
		return errors.New("the device is published read-only, and it is written to")
	}
	return readDevice(v.target("a"), content)
}

func writeDevice(path string, content []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	return errors.Join(err, f.Sync(), f.Close())
}

func readDevice(path string, content []byte) error {
	info, err := os.Stat(path)
	if err == nil && info.Mode()&os.ModeDevice == 0 {
		err = errors.New("the target is not a device file")
	}
	if err != nil {
		return err
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	got := make([]byte, deviceSize)
	if _, err := io.ReadFull(f, got); err != nil {
		return err
	}
	if string(got) != string(content) {
		return errors.New("the device has another content than was written")
	}
	return nil
}
