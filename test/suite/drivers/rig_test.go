package drivers

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/faultydriver"
	"github.com/pannier/pannier/test/lib/testhost"
)

// Ids of the driver at the agent: behind is the driver itself, which the agent runs. front passes each call on to it,
// and is where a test kills it within a call.
const (
	behind = "real"
	front  = "front"
)

// rig is a host with one driver.
type rig struct {
	driver
	way     way
	storage storage
	h       *testhost.Host
	front   *faultydriver.Driver
	// program is a copy of the driver's, or its container, which a test can take away.
	program string
	// can has the driver's capabilities, as the driver itself answers.
	can          map[string]bool
	noController bool
}

func newRig(t *testing.T, d driver, w way) *rig {
	t.Helper()
	dir := check.Must(os.MkdirTemp("", "front"))(t)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	socket := filepath.Join(dir, "csi.sock")
	r := &rig{driver: d, way: w, can: map[string]bool{}}
	share := filepath.Join(dir, "share")
	mountShare(t, share)
	if d.serve != nil {
		r.storage = d.serve(t, share)
	}
	block, program := d.block(t, w, dir, r.storage.env)
	r.program = program
	r.h = testhost.New(t, block+w.front("unix://"+socket))
	endpoint := "unix://" + r.h.Path("data/csi/"+behind+"/csi.sock")
	r.front = faultydriver.Start(t, faultydriver.Config{Socket: socket, Forward: endpoint})
	r.h.Start()
	r.ask(t, endpoint)
	return r
}

// ask reads the driver's capabilities without the agent.
func (r *rig) ask(t *testing.T, endpoint string) {
	t.Helper()
	conn := check.Must(grpc.NewClient(endpoint, grpc.WithTransportCredentials(insecure.NewCredentials())))(t)
	defer conn.Close()
	plugin, err := csi.NewIdentityClient(conn).GetPluginCapabilities(t.Context(), &csi.GetPluginCapabilitiesRequest{})
	check.NoError(t, err)
	for _, c := range plugin.GetCapabilities() {
		if e := c.GetVolumeExpansion(); e != nil {
			r.can[e.GetType().String()] = true
		}
	}
	controller, err := csi.NewControllerClient(conn).ControllerGetCapabilities(t.Context(),
		&csi.ControllerGetCapabilitiesRequest{})
	if r.noController = status.Code(err) == codes.Unimplemented; !r.noController {
		check.NoError(t, err)
	}
	for _, c := range controller.GetCapabilities() {
		r.can[c.GetRpc().GetType().String()] = true
	}
	node, err := csi.NewNodeClient(conn).NodeGetCapabilities(t.Context(), &csi.NodeGetCapabilitiesRequest{})
	check.NoError(t, err)
	for _, c := range node.GetCapabilities() {
		r.can["node "+c.GetRpc().GetType().String()] = true
	}
}

// trial is one cell under way.
type trial struct {
	*rig
	t *testing.T
	// row of the matrix; id is the driver that its volumes name.
	row, id string
	volumes []string
	result  result
}

// result of a cell. The zero value is done.
type result struct {
	failed bool
	// missing is the capability that the driver does not have, or its own words.
	missing string
}

func (r result) String() string {
	switch {
	case r.failed:
		return "**fail**"
	case r.missing != "":
		return "not supported: " + r.missing
	}
	return "done"
}

// lacks ends a cell whose driver has not the capability: command must be refused for that reason.
func (c *trial) lacks(capability string, command ...string) bool {
	c.t.Helper()
	words := c.refuses[c.row]
	switch {
	case words != "":
		c.result.missing = fmt.Sprintf("it answers “%s”", words)
	case c.noController:
		words = "no controller service"
		c.result.missing = words
	case !c.can[capability]:
		words = strings.TrimPrefix(capability, "node ")
		c.result.missing = "no `" + words + "`"
	default:
		return false
	}
	got := c.h.Try(command...)
	if got.Code == 0 || !strings.Contains(got.Stderr, words) {
		c.t.Errorf("pannier %s: exit code %d, and not the reason %q:\n%s%s", strings.Join(command, " "), got.Code, words,
			got.Stdout, got.Stderr)
	}
	return true
}

const (
	writer = "single-node-writer"
	files  = "file-system"
)

// spec writes a volume's specification.
func (c *trial) spec(id, access, attachment, more string) string {
	if !strings.Contains(more, "capacity_min") {
		more += fmt.Sprintf("\ncapacity_min = %q\ncapacity_max = %[1]q\n", cmp.Or(c.size, "64MiB"))
	}
	return c.h.Write(id+".hcl", fmt.Sprintf(`
id        = %q
type      = "csi"
plugin_id = %q
capability {
  access_mode     = %q
  attachment_mode = %q
}
%s`, id, c.id, access, attachment, more+"\n"+c.driver.volume+c.storage.volume))
}

// volume makes a volume, which is deleted at the end of the cell.
func (c *trial) volume(id, more string) string {
	c.t.Helper()
	return c.create(id, c.spec(id, writer, files, more))
}

func (c *trial) create(id, spec string) string {
	c.t.Helper()
	c.h.Run("volume", "create", spec)
	c.volumes = append(c.volumes, id)
	return id
}

// forget does not delete the volume at the end.
func (c *trial) forget(id string) {
	c.volumes = slices.DeleteFunc(c.volumes, func(v string) bool { return v == id })
}

// workload writes a workload's specification with one volume.
func (c *trial) workload(id, source, more string) string {
	return c.h.Write(id+".hcl", fmt.Sprintf(`
workload %q {
  volume "data" {
    source      = %q
    destination = %q
    %s
  }
}
`, id, source, c.h.Path("mnt"), more))
}

func (c *trial) write(source, text string) {
	c.t.Helper()
	c.h.Run("workload", "run", c.workload("w", source, ""), "--", "sh", "-c", "echo "+text+" > "+c.h.Path("mnt/file"))
}

func (c *trial) reads(source, want string) {
	c.t.Helper()
	spec := c.workload("w", source, "")
	if got := c.h.Run("workload", "run", spec, "--", "cat", c.h.Path("mnt/file")); got != want+"\n" {
		c.t.Errorf("volume %s has %q, want %q", source, got, want)
	}
}

func (c *trial) externalID(id string) string {
	c.t.Helper()
	var v struct {
		Volume struct {
			Spec struct {
				ExternalID string `json:"external_id"`
			}
		}
	}
	c.decode(&v, "volume", "status", id)
	if v.Volume.Spec.ExternalID == "" {
		c.t.Fatalf("volume %s has no external id", id)
	}
	return v.Volume.Spec.ExternalID
}

// decode reads a command's JSON.
func (c *trial) decode(v any, args ...string) {
	c.t.Helper()
	out := c.h.Run(append(args, "-o", "json")...)
	if err := json.Unmarshal([]byte(out), v); err != nil {
		c.t.Fatalf("read what pannier %s prints: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// status of the driver that the agent runs.
func (c *trial) status() *hostv1.Driver {
	c.t.Helper()
	s := check.Must(c.h.Status())(c.t)
	for _, d := range s.GetDrivers() {
		if d.GetId() == behind {
			return d
		}
	}
	c.t.Fatal("the agent has no driver " + behind)
	return nil
}

// kill the driver.
func (c *trial) kill() {
	c.t.Helper()
	check.NoError(c.t, unix.Kill(int(c.status().GetPid()), unix.SIGKILL))
}

// end deletes what the cell has made.
func (c *trial) end() {
	c.t.Helper()
	for _, id := range slices.Backward(c.volumes) {
		c.h.Run("volume", "delete", id)
	}
	c.h.NothingInUse()
}

// cleanUp after a cell that failed, so that the next ones do not.
func (c *trial) cleanUp() {
	if !c.t.Failed() {
		return
	}
	for _, w := range []string{"w", "r", "first", "second", "holder"} {
		c.h.Try("workload", "stop", w)
	}
	for _, id := range slices.Backward(c.volumes) {
		c.h.Try("volume", "delete", id)
	}
}

// run is one cell.
func (r *rig) run(t *testing.T, row row) result {
	c := &trial{rig: r, row: row.name, id: behind, result: result{failed: true}}
	t.Run(row.name, func(t *testing.T) {
		c.t = t
		r.h.Use(t)
		c.result = result{}
		defer func() { c.result.failed = t.Failed() }()
		defer c.cleanUp()
		if r.onlyEphemeral && row.name != "ephemeral volume" {
			c.lacks("CREATE_DELETE_VOLUME", "volume", "create", c.spec("data", writer, files, ""))
		} else {
			row.run(c)
		}
		c.end()
	})
	return c.result
}

// background starts a command, and returns a function that waits for its end.
func (c *trial) background(args ...string) (wait func() error) {
	c.t.Helper()
	cmd := c.h.Command(args...)
	var said strings.Builder
	cmd.Stdout, cmd.Stderr = &said, &said
	check.NoError(c.t, cmd.Start())
	ended := make(chan error, 1)
	go func() {
		err := cmd.Wait()
		if err != nil {
			err = fmt.Errorf("pannier %s: %w\n%s", strings.Join(args, " "), err, said.String())
		}
		ended <- err
	}()
	c.t.Cleanup(func() { _ = cmd.Process.Kill() })
	return func() error {
		ctx, cancel := context.WithTimeout(c.t.Context(), testhost.Wait)
		defer cancel()
		select {
		case err := <-ended:
			return err
		case <-ctx.Done():
			return fmt.Errorf("pannier %s does not end", strings.Join(args, " "))
		}
	}
}
