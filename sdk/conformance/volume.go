package conformance

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/sdk/storage"
)

// volumeSize is the size that the kit requests, in bytes: small, but enough for ext4 and xfs.
const volumeSize = 320 << 20

// volume is one volume of the kit, and the calls that take it through its life.
type volume struct {
	storage.Volume

	driver   storage.Driver
	request  storage.CreateRequest
	creates  bool // the kit makes and deletes it
	asked    bool // Create was called
	attaches bool
	capacity int64             // that Create reports
	node     string            // the driver's id for this node
	context  map[string]string // the publish context
	dir      string            // of its paths
	staging  string            // empty if the driver does not stage
	targets  map[string]bool   // that were published, by their names
	tree     []string          // that was written to it
}

// usable returns the fingerprint of the real driver, if volumes can be published there.
func (r *run) usable(ctx context.Context, conn grpc.ClientConnInterface) (storage.Fingerprint, error) {
	fp, err := fingerprint(ctx, conn, r.real())
	switch {
	case err != nil:
		return fp, fmt.Errorf("fingerprint: %w", err)
	case !fp.Healthy:
		return fp, fmt.Errorf("the driver is unhealthy: %s", fp.Message)
	case fp.Node == nil:
		return fp, skip("needs a CSI driver with a node service")
	}
	if fp.Controller == nil {
		fp.Controller = &storage.ControllerCapabilities{}
	}
	return fp, nil
}

// volume prepares a volume with a directory of its own. Nothing has been called yet.
func (r *run) volume(fp storage.Fingerprint, name string) (*volume, error) {
	v := &volume{
		Volume: r.cfg.Volume, driver: r.cfg.Driver, node: fp.Node.NodeID, attaches: fp.Controller.AttachDetach,
		targets: map[string]bool{},
	}
	if v.ExternalID == "" {
		if !fp.Controller.CreateDelete {
			return nil, skip("needs a volume (Config.Volume): the driver cannot create one")
		}
		v.creates = true
		v.Volume = storage.Volume{
			Name: name, Capability: plain, Secrets: r.volumeSecrets(),
		}
		v.request = storage.CreateRequest{Name: name, CapacityMin: volumeSize, Secrets: v.Secrets}
	}
	var err error
	if v.dir, err = r.folder(); err != nil {
		return nil, err
	}
	if fp.Node.StageUnstage {
		v.staging = filepath.Join(v.dir, "staging")
		return v, os.Mkdir(v.staging, 0o700)
	}
	return v, nil
}

// volumeSecrets are the secrets of every volume that the kit makes.
func (r *run) volumeSecrets() map[string]string {
	return map[string]string{"password": r.secret + "-volume"}
}

// target returns the path of one of its targets.
func (v *volume) target(name string) string { return filepath.Join(v.dir, name) }

func (v *volume) create(ctx context.Context, conn grpc.ClientConnInterface) error {
	v.asked, v.request.Capabilities = true, []storage.Capability{v.Capability}
	res, err := storage.NewClient(conn).Create(ctx, v.driver, v.request)
	if err == nil && res.ExternalID == "" {
		err = errors.New("it returns no external id")
	}
	if err == nil {
		v.ExternalID, v.Context, v.capacity = res.ExternalID, res.Context, res.Capacity
	}
	return err
}

func (v *volume) validate(ctx context.Context, conn grpc.ClientConnInterface) error {
	_, err := storage.NewClient(conn).ValidateVolume(ctx, v.driver,
		storage.ValidateRequest{Volume: v.Volume, Capabilities: []storage.Capability{v.Capability}})
	return err
}

func (v *volume) attach(ctx context.Context, conn grpc.ClientConnInterface) error {
	publish, err := storage.NewClient(conn).Attach(ctx, v.driver,
		storage.AttachRequest{Volume: v.Volume, NodeID: v.node, ReadOnly: v.readsOnly()})
	if err == nil {
		v.context = publish
	}
	return err
}

func (v *volume) stage(ctx context.Context, conn grpc.ClientConnInterface) error {
	return storage.NewClient(conn).Stage(ctx, v.driver,
		storage.StageRequest{Volume: v.Volume, PublishContext: v.context, StagingPath: v.staging})
}

func (v *volume) publish(ctx context.Context, conn grpc.ClientConnInterface, name string, readOnly bool) error {
	v.targets[name] = true
	if err := v.publishOnly(ctx, conn, name, readOnly); err != nil {
		return err
	}
	if _, err := once(v.target(name)); err != nil {
		return fmt.Errorf("it succeeded, and %w", err)
	}
	return nil
}

// publishOnly is publish beside other calls for the same target: the mounts cannot be checked yet.
func (v *volume) publishOnly(ctx context.Context, conn grpc.ClientConnInterface, name string, readOnly bool) error {
	return storage.NewClient(conn).Publish(ctx, v.driver, storage.PublishRequest{
		Volume: v.Volume, PublishContext: v.context, StagingPath: v.staging, TargetPath: v.target(name),
		ReadOnly: readOnly || v.readsOnly(),
	})
}

// unpublishOnly is unpublish beside other calls for the same target.
func (v *volume) unpublishOnly(ctx context.Context, conn grpc.ClientConnInterface, name string) error {
	return storage.NewClient(conn).Unpublish(ctx, v.driver, v.Volume, v.target(name))
}

func (v *volume) unpublish(ctx context.Context, conn grpc.ClientConnInterface, name string) error {
	if err := v.unpublishOnly(ctx, conn, name); err != nil {
		return err
	}
	if err := none(v.target(name)); err != nil {
		return fmt.Errorf("it succeeded, and %w", err)
	}
	return nil
}

func (v *volume) unstage(ctx context.Context, conn grpc.ClientConnInterface) error {
	return storage.NewClient(conn).Unstage(ctx, v.driver, v.Volume, v.staging)
}

func (v *volume) detach(ctx context.Context, conn grpc.ClientConnInterface) error {
	return storage.NewClient(conn).Detach(ctx, v.driver, v.Volume, v.node)
}

func (v *volume) remove(ctx context.Context, conn grpc.ClientConnInterface) error {
	return storage.NewClient(conn).Delete(ctx, v.driver, v.Volume)
}

// readsOnly reports whether its access mode has no writer.
func (v *volume) readsOnly() bool { return v.Capability.AccessMode == storage.SingleNodeReaderOnly }

// lab is one check's plugin process with its volumes. They are removed when the check is over, however it ends.
type lab struct {
	*run
	c         *checking
	p         *process
	fp        storage.Fingerprint
	volumes   []*volume
	snapshots []string // ids
}

// lab starts a process for a check that works with volumes of the real driver.
func (r *run) lab(ctx context.Context, c *checking) (*lab, error) {
	if why := r.kind.missing(&r.cfg); why != "" {
		return nil, skip(why)
	}
	if r.cfg.Volume.ExternalID != "" {
		r.only.Lock() // there is one volume for all checks
		c.ends(r.only.Unlock)
	}
	l := &lab{run: r, c: c}
	if err := l.restart(ctx); err != nil {
		return nil, err
	}
	c.ends(l.clear)
	var err error
	l.fp, err = r.usable(ctx, l.p.conn)
	return l, err
}

// inLab makes a check of one that works in a lab.
func inLab(do func(ctx context.Context, l *lab) error) func(context.Context, *run, *checking) error {
	return func(ctx context.Context, r *run, c *checking) error {
		l, err := r.lab(ctx, c)
		if err != nil {
			return err
		}
		return do(ctx, l)
	}
}

// restart kills the process, if there is one, and starts another.
func (l *lab) restart(ctx context.Context) error {
	if l.p != nil {
		if err := l.p.die(ctx); err != nil {
			return err
		}
	}
	p, err := l.up(ctx, l.c)
	if err != nil {
		return err
	}
	l.p = p
	return nil
}

func (l *lab) client() storage.Client { return storage.NewClient(l.p.conn) }

// volume prepares a volume. It is removed at the end even if create fails: the driver may have made it.
func (l *lab) volume() (*volume, error) {
	v, err := l.run.volume(l.fp, fmt.Sprintf("%s-%s", l.c.name(), uuid()[:8]))
	if err == nil {
		l.volumes = append(l.volumes, v)
	}
	return v, err
}

// another is volume for checks that need volumes of their own.
func (l *lab) another() (*volume, error) {
	if err := l.creates(); err != nil {
		return nil, err
	}
	return l.volume()
}

// creates returns why the kit cannot make volumes.
func (l *lab) creates() error {
	if l.cfg.Volume.ExternalID != "" || !l.fp.Controller.CreateDelete {
		return skip("needs a driver that creates volumes")
	}
	return nil
}

// filled returns a new volume that is published at the target "a", with a file of random content.
func (l *lab) filled(ctx context.Context) (*volume, []byte, error) {
	v, err := l.volume()
	if err != nil {
		return nil, nil, err
	}
	if err := l.made(ctx, v); err != nil {
		return nil, nil, err
	}
	if err := l.publish(ctx, v, "a"); err != nil {
		return nil, nil, err
	}
	content := fresh()
	err = v.write("a", content)
	return v, content, err
}

// do makes a call as a host does: it retries the errors that can be retried.
func (l *lab) do(ctx context.Context, what string, call volumeCall) error {
	if err := insist(ctx, func(ctx context.Context) error { return call(ctx, l.p.conn) }); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// insist repeats a call while its error can be retried.
func insist(ctx context.Context, call func(context.Context) error) error {
	for deadline := time.Now().Add(callTime); ; {
		callCtx, cancel := context.WithTimeout(ctx, callTime)
		err := call(callCtx)
		cancel()
		switch status.Code(err) {
		case codes.Unavailable, codes.Aborted, codes.ResourceExhausted:
			if time.Now().Before(deadline) && ctx.Err() == nil {
				time.Sleep(50 * time.Millisecond)
				continue
			}
		}
		return err
	}
}

// made makes the volume available on this node: all that precedes a publish.
func (l *lab) made(ctx context.Context, v *volume) error {
	if v.creates {
		if err := l.do(ctx, "Create", v.create); err != nil {
			return err
		}
	}
	return l.ready(ctx, v)
}

// ready attaches and stages an existing volume.
func (l *lab) ready(ctx context.Context, v *volume) error {
	if v.attaches {
		if err := l.do(ctx, "Attach", v.attach); err != nil {
			return err
		}
	}
	return l.stage(ctx, v)
}

func (l *lab) stage(ctx context.Context, v *volume) error {
	if v.staging == "" {
		return nil
	}
	return l.do(ctx, "Stage", v.stage)
}

func (l *lab) unstage(ctx context.Context, v *volume) error {
	if v.staging == "" {
		return nil
	}
	return l.do(ctx, "Unstage", v.unstage)
}

// unready reverses ready.
func (l *lab) unready(ctx context.Context, v *volume) error {
	if err := l.unstage(ctx, v); err != nil || !v.attaches {
		return err
	}
	return l.do(ctx, "Detach", v.detach)
}

func (l *lab) publish(ctx context.Context, v *volume, name string) error {
	return l.do(ctx, "Publish", func(ctx context.Context, conn grpc.ClientConnInterface) error {
		return v.publish(ctx, conn, name, false)
	})
}

func (l *lab) publishReadOnly(ctx context.Context, v *volume, name string) error {
	return l.do(ctx, "Publish read-only", func(ctx context.Context, conn grpc.ClientConnInterface) error {
		return v.publish(ctx, conn, name, true)
	})
}

func (l *lab) unpublish(ctx context.Context, v *volume, name string) error {
	return l.do(ctx, "Unpublish", func(ctx context.Context, conn grpc.ClientConnInterface) error {
		return v.unpublish(ctx, conn, name)
	})
}

// unpublished unpublishes the volume everywhere, and undoes ready.
func (l *lab) unpublished(ctx context.Context, v *volume) error {
	for _, name := range slices.Sorted(maps.Keys(v.targets)) {
		if err := l.unpublish(ctx, v, name); err != nil {
			return err
		}
	}
	return l.unready(ctx, v)
}

// second publishes the volume at a second target, if the driver allows that.
func (l *lab) second(ctx context.Context, v *volume, name string) error {
	err := l.publish(ctx, v, name)
	if status.Code(err) == codes.FailedPrecondition {
		return skip("needs a driver that publishes a volume at two targets: " + status.Convert(err).Message())
	}
	return err
}

// sharable returns a volume that several workloads of this node may write to, as far as the driver knows such a mode.
func (l *lab) sharable(v *volume) {
	if v.creates && l.fp.Node.SingleNodeMultiWriter && l.fp.Controller.SingleNodeMultiWriter {
		v.Capability.AccessMode = storage.SingleNodeMultiWriter
	}
}

// clear removes the volumes and snapshots. What cannot be removed is reported.
func (l *lab) clear() {
	if len(l.volumes) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), checkTime/2)
	defer cancel()
	select {
	case <-l.p.done: // the check has killed it, or it is over already
		p, err := l.up(ctx, l.c)
		if err != nil {
			for _, v := range l.volumes {
				l.leave("volume %s: %v", v.Name, err)
			}
			return
		}
		l.p = p
	default:
	}
	// Some drivers delete neither a source before its snapshots, nor a snapshot before the volumes made from it.
	for _, v := range slices.Backward(l.volumes) {
		if v.request.SnapshotID == "" {
			l.discardSnapshots(ctx)
		}
		l.discard(ctx, v)
	}
}

// released repeats a release for a moment, as a host repeats it until it succeeds. A mount is busy while a process that
// is being started still has the files that were open in it (fork(2)).
func released(ctx context.Context, release func() error) {
	for deadline := time.Now().Add(time.Second); release() != nil && time.Now().Before(deadline) && ctx.Err() == nil; {
		time.Sleep(50 * time.Millisecond)
	}
}

func (l *lab) discardSnapshots(ctx context.Context) {
	for _, id := range l.snapshots {
		err := l.deleteSnapshot(ctx, id)
		if err == nil && l.fp.Controller.ListSnapshots {
			if listed, listErr := pages(ctx, 0, l.listSnapshots); listErr == nil && slices.Contains(listed, id) {
				err = errors.New("DeleteSnapshot succeeds, and it is still listed")
			}
		}
		if err != nil {
			l.leave("snapshot %s: %v", id, err)
		}
	}
	l.snapshots = nil
}

// discard removes a volume, with what the plugin should have removed before.
func (l *lab) discard(ctx context.Context, v *volume) {
	if v.ExternalID == "" {
		// A Create that was interrupted is repeated, to learn the id.
		if !v.asked || l.do(ctx, "Create", v.create) != nil {
			return
		}
	}
	if !v.creates {
		l.unwrite(ctx, v)
	}
	// What stays mounted is unmounted and reported by unmountBelow.
	for _, name := range slices.Sorted(maps.Keys(v.targets)) {
		released(ctx, func() error { return l.unpublish(ctx, v, name) })
	}
	released(ctx, func() error { return l.unstage(ctx, v) })
	l.unmountBelow(v.dir)
	if v.attaches {
		_ = l.do(ctx, "Detach", v.detach)
	}
	if !v.creates {
		return
	}
	err := l.do(ctx, "Delete", v.remove)
	if err == nil && l.do(ctx, "ValidateVolume", v.validate) == nil {
		err = errors.New("Delete succeeds, and it is still there")
	}
	if err != nil {
		l.leave("volume %s: %v", v.Name, err)
	}
}

// unwrite removes what the kit has written to a volume that it was given.
func (l *lab) unwrite(ctx context.Context, v *volume) {
	_ = l.unpublished(ctx, v) // it may be read-only
	v.Capability = l.cfg.Volume.Capability
	err := l.ready(ctx, v)
	if err == nil {
		err = l.publish(ctx, v, "a")
	}
	own, globErr := filepath.Glob(filepath.Join(v.target("a"), file+"*"))
	err = errors.Join(err, globErr)
	for _, path := range own {
		err = errors.Join(err, os.RemoveAll(path))
	}
	if err != nil {
		l.leave("files %s* in the volume %s: %v", file, v.Name, err)
	}
}

func (l *lab) deleteSnapshot(ctx context.Context, id string) error {
	return l.do(ctx, "DeleteSnapshot", func(ctx context.Context, _ grpc.ClientConnInterface) error {
		return l.client().DeleteSnapshot(ctx, l.cfg.Driver, id, l.volumeSecrets())
	})
}
