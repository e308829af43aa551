package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/testbin"
)

const mib = 1 << 20

// rig is one data directory, one socket and the real driver with them, which can be killed and restarted. All
// paths of a test are below dir.
type rig struct {
	csi.IdentityClient
	csi.ControllerClient
	csi.NodeClient

	t    *testing.T
	ctx  context.Context
	bin  string
	dir  string // of everything
	data string // the driver's data directory
	sock string
	cmd  *exec.Cmd
	log  *logFile
	conn *grpc.ClientConn
}

// newRig starts a driver. At the end of the test the driver is killed; mounts and devices that it left are errors,
// and are removed.
func newRig(t *testing.T) *rig {
	t.Helper()
	testbin.RequireRoot(t, "the csi-local driver")
	dir := t.TempDir()
	return newRigIn(t, dir, filepath.Join(dir, "data"))
}

func newRigIn(t *testing.T, dir, data string) *rig {
	t.Helper()
	r := &rig{
		t:    t,
		ctx:  t.Context(),
		bin:  driverBinary(t),
		dir:  dir,
		data: data,
		sock: filepath.Join(dir, "csi.sock"),
		log:  &logFile{path: filepath.Join(dir, "driver.log")},
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("driver log:\n%s", r.log.tail(8000))
		}
	})
	t.Cleanup(func() { cleanUp(t, dir) })
	r.start()
	t.Cleanup(r.kill)
	return r
}

var binary struct {
	once sync.Once
	path string
}

// driverBinary builds the driver once for all tests.
func driverBinary(t *testing.T) string {
	t.Helper()
	binary.once.Do(func() { binary.path = testbin.Build(t, "drivers/csi-local") })
	if binary.path == "" {
		t.Fatal("the driver does not build")
	}
	return binary.path
}

// start runs the driver and waits until it answers.
func (r *rig) start() {
	r.t.Helper()
	out, err := os.OpenFile(r.log.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	check.NoError(r.t, err)
	defer out.Close()
	r.cmd = exec.Command(r.bin, "-endpoint", "unix://"+r.sock, "-node-id", "node-1", "-data-dir", r.data, "-v")
	r.cmd.Stderr = out
	// A driver must not outlive the test binary.
	r.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	check.NoError(r.t, r.cmd.Start())
	r.connect()
	check.Eventually(r.t, "the driver answers", func() bool {
		_, err := r.Probe(context.Background(), &csi.ProbeRequest{})
		return err == nil
	})
}

func (r *rig) connect() {
	if r.conn != nil {
		r.conn.Close()
	}
	// A new connection, because the old one may be in its backoff.
	conn, err := grpc.NewClient("unix:"+r.sock,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{BaseDelay: 5 * time.Millisecond, Multiplier: 1.2, MaxDelay: 50 * time.Millisecond},
		}))
	check.NoError(r.t, err)
	r.conn = conn
	r.IdentityClient = csi.NewIdentityClient(conn)
	r.ControllerClient = csi.NewControllerClient(conn)
	r.NodeClient = csi.NewNodeClient(conn)
}

// kill kills the driver with SIGKILL and waits until it is gone.
func (r *rig) kill() {
	r.cmd.Process.Kill()
	r.cmd.Wait()
	r.conn.Close()
}

// path makes a directory below the rig's.
func (r *rig) path(parts ...string) string {
	p := filepath.Join(append([]string{r.dir}, parts...)...)
	check.NoError(r.t, os.MkdirAll(p, 0o700))
	return p
}

// create creates a volume, or fails the test.
func (r *rig) create(name string, size int64, c *csi.VolumeCapability) string {
	r.t.Helper()
	resp, err := r.CreateVolume(r.ctx, createRequest(name, size, c))
	check.NoError(r.t, err)
	return resp.GetVolume().GetVolumeId()
}

func createRequest(name string, size int64, c *csi.VolumeCapability) *csi.CreateVolumeRequest {
	return &csi.CreateVolumeRequest{
		Name:               name,
		CapacityRange:      &csi.CapacityRange{RequiredBytes: size},
		VolumeCapabilities: []*csi.VolumeCapability{c},
	}
}

// stage and publish make a volume available at <dir>/stage/<id> and <dir>/pub/<target>.
func (r *rig) stage(id string, c *csi.VolumeCapability) string {
	r.t.Helper()
	path := r.path("stage", id)
	// A driver that looks at all loop devices has each open for a moment, and so keeps one that was just detached.
	check.Eventually(r.t, "volume "+id+" is not in use any more", func() bool {
		err := r.tryStage(id, path, c)
		if status.Code(err) == codes.Aborted && strings.Contains(err.Error(), "by what cannot be seen from here") {
			return false
		}
		check.NoError(r.t, err)
		return true
	})
	return path
}

func (r *rig) tryStage(id, path string, c *csi.VolumeCapability) error {
	_, err := r.NodeStageVolume(r.ctx,
		&csi.NodeStageVolumeRequest{VolumeId: id, StagingTargetPath: path, VolumeCapability: c})
	return err
}

func (r *rig) publish(id, target string, c *csi.VolumeCapability, readOnly bool) string {
	r.t.Helper()
	path := filepath.Join(r.path("pub"), target)
	check.NoError(r.t, r.tryPublish(id, path, c, readOnly))
	return path
}

func (r *rig) tryPublish(id, path string, c *csi.VolumeCapability, readOnly bool) error {
	_, err := r.NodePublishVolume(r.ctx, &csi.NodePublishVolumeRequest{
		VolumeId: id, StagingTargetPath: filepath.Join(r.dir, "stage", id), TargetPath: path,
		VolumeCapability: c, Readonly: readOnly,
	})
	return err
}

func (r *rig) unpublish(id, path string) {
	r.t.Helper()
	_, err := r.NodeUnpublishVolume(r.ctx, &csi.NodeUnpublishVolumeRequest{VolumeId: id, TargetPath: path})
	check.NoError(r.t, err)
}

func (r *rig) unstage(id string) {
	r.t.Helper()
	_, err := r.NodeUnstageVolume(r.ctx, &csi.NodeUnstageVolumeRequest{
		VolumeId: id, StagingTargetPath: filepath.Join(r.dir, "stage", id),
	})
	check.NoError(r.t, err)
}

func (r *rig) delete(id string) {
	r.t.Helper()
	_, err := r.DeleteVolume(r.ctx, &csi.DeleteVolumeRequest{VolumeId: id})
	check.NoError(r.t, err)
}

// image returns the path of a volume's data on the host's disk.
func (r *rig) image(id string) string { return filepath.Join(r.data, "volumes", id, id+".img") }

// checkNothingLeft fails the test if a mount, a loop device, a staging file or an unfinished file exists.
func (r *rig) checkNothingLeft() {
	r.t.Helper()
	for _, m := range mountsBelow(r.t, r.dir) {
		if m.Mountpoint != r.data { // a test may mount its own disk there
			r.t.Errorf("left mounted: %s %s at %s", m.FSType, m.Source, m.Mountpoint)
		}
	}
	for _, dev := range loopsBelow(r.data) {
		r.t.Errorf("left attached: %s", dev)
	}
	for _, pattern := range []string{"data/tmp/*", "data/frozen/*", "stage/*/*", "pub/*"} {
		left, _ := filepath.Glob(filepath.Join(r.dir, pattern))
		for _, path := range left {
			r.t.Errorf("left behind: %s", path)
		}
	}
}

// mount is the capability of a file system, block that of a block device.
func mount(mode csi.VolumeCapability_AccessMode_Mode, fsType string, flags ...string) *csi.VolumeCapability {
	return &csi.VolumeCapability{
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: mode},
		AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{FsType: fsType, MountFlags: flags}},
	}
}

func block(mode csi.VolumeCapability_AccessMode_Mode) *csi.VolumeCapability {
	return &csi.VolumeCapability{
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: mode},
		AccessType: &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}},
	}
}

const (
	writer       = csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER
	singleWriter = csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER
	multiWriter  = csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER
	reader       = csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY
)

// expectCode fails the test unless err has the code and its message contains all the words.
func expectCode(t *testing.T, err error, want codes.Code, words ...string) {
	t.Helper()
	if status.Code(err) != want {
		t.Errorf("got %v, want %s", err, want)
		return
	}
	for _, word := range words {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("%q does not say %q", err, word)
		}
	}
}

func mountsBelow(t testing.TB, dir string) []*mountinfo.Info {
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(dir))
	check.NoError(t, err)
	return mounts
}

// loopsBelow lists the loop devices whose files are below dir, as "device file".
func loopsBelow(dir string) []string {
	var found []string
	files, _ := filepath.Glob("/sys/block/loop*/loop/backing_file")
	for _, f := range files {
		if data, err := os.ReadFile(f); err == nil && strings.HasPrefix(string(data), dir+"/") {
			found = append(found, "/dev/"+strings.Split(f, "/")[3]+" "+strings.TrimSpace(string(data)))
		}
	}
	return found
}

// cleanUp removes all mounts below dir and all loop devices of files below it, whatever state a test was in.
func cleanUp(t testing.TB, dir string) {
	loops := loopsBelow(dir) // first: their paths change when their disk is unmounted
	mounts := mountsBelow(t, dir)
	for i := len(mounts) - 1; i >= 0; i-- {
		thaw(mounts[i])
		if err := unix.Unmount(mounts[i].Mountpoint, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) {
			t.Errorf("clean up %s: %v", mounts[i].Mountpoint, err)
		}
	}
	for _, dev := range loops {
		path, file, _ := strings.Cut(dev, " ")
		now, err := os.ReadFile(filepath.Join("/sys/block", filepath.Base(path), "loop/backing_file"))
		if err != nil || filepath.Base(strings.TrimSpace(string(now))) != filepath.Base(file) {
			continue // went away with its mount
		}
		if out, err := exec.Command("losetup", "-d", path).CombinedOutput(); err != nil {
			t.Logf("clean up %s: %v: %s", dev, err, out)
		}
	}
}

// logFile is the driver's log.
type logFile struct{ path string }

func (l *logFile) tail(n int) string {
	data, _ := os.ReadFile(l.path)
	return string(data[max(0, len(data)-n):])
}

// shell runs a program and returns what it printed.
func shell(t testing.TB, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
	return string(bytes.TrimSpace(out))
}

func writeFile(t testing.TB, path string, data []byte) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	check.NoError(t, err)
	_, err = f.Write(data)
	check.NoError(t, errors.Join(err, f.Sync(), f.Close()))
}

func readFile(t testing.TB, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	check.NoError(t, err)
	return string(data)
}

// pattern returns n bytes that differ from each other and depend on seed.
func pattern(seed, n int) []byte {
	var b bytes.Buffer
	for i := 0; b.Len() < n; i++ {
		b.WriteString(strconv.Itoa(seed) + "/" + fmt.Sprintf("%09d ", i))
	}
	return b.Bytes()[:n]
}

// thaw reverses a freeze that a test left, but only on a loop device.
func thaw(m *mountinfo.Info) {
	if !strings.HasPrefix(m.Source, "/dev/loop") {
		return
	}
	if f, err := os.Open(m.Mountpoint); err == nil {
		unix.IoctlSetInt(int(f.Fd()), 0xC0045878, 0)
		f.Close()
	}
}
