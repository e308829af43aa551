package browser

import (
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/docpages"
	"github.com/pannier/pannier/test/lib/faultydriver"
	"github.com/pannier/pannier/test/lib/testcluster"
	"github.com/pannier/pannier/test/lib/testhost"
	"github.com/pannier/pannier/test/suite/chromium"
)

// troubles is a cluster of which one node is lost, with 50 volumes of which ten fail in ten ways.
type troubles struct {
	*testcluster.Cluster
	server, kept, lost *testhost.Host
	t                  *testing.T
}

// longName is that of a volume; its end tells it from others.
const longName = "media-library-of-the-second-floor.replicated-nightly"

// Of a cluster in trouble the pages show what to do first, once, and cut off nothing.
func TestTroubles(t *testing.T) {
	t.Parallel()
	block := strings.Replace(docpages.Block(t, "web.md", "config", "web"), "policy = \"web\"", "", 1) // ACLs are off
	c := &troubles{t: t, Cluster: testcluster.Start(t, testcluster.Options{
		Servers: 1, Nodes: 2, Plugins: []string{"web"}, Config: block + testhost.LocalDriver(t),
		ServerConfig: "heartbeat_ttl = \"2s\"\nstop_after = \"600s\"\nstop_margin = \"300s\"",
	})}
	c.server, c.kept, c.lost = c.Hosts[0], c.Hosts[1], c.Hosts[2]
	for n := range 40 {
		c.Volume(c.server, fmt.Sprintf("%s-%02d", longName, n), "multi-node-multi-writer")
	}
	pid := c.fail()

	site := forward(t, c.server, "7480")
	b := newBrowser(t)
	b.do("be in Tokyo", chromium.Call(emulation.SetTimezoneOverride, emulation.SetTimezoneOverrideParams{TimezoneID: "Asia/Tokyo"}))
	b.open(site + "/checks")
	b.live()
	b.sees("tbody", c.lost.Name+" sends no heartbeats")
	const lostRows = `[...document.querySelectorAll("tbody tr")].filter(r => r.querySelector(".badge.bad") && r.cells[2].innerText.startsWith(%q)).length`
	b.until("the lost node is one problem", fmt.Sprintf(lostRows+" == 1", c.lost.Name))
	b.sees(".with", c.lost.Name+" is failed: no gossip arrives from it")
	b.pictures("troubles-checks")

	b.open(site + "/volumes")
	b.live()
	kill := fmt.Sprintf("kill %d", pid)
	b.until("what fails is first", `(() => {
		const failing = [...document.querySelectorAll("tbody tr")].map(r => r.querySelector(".wrong") != null);
		return failing.filter(f => f).length >= 9 && failing.lastIndexOf(true) < failing.indexOf(false);
	})()`)
	b.until("how full a volume of another host is", `[...document.querySelectorAll("tbody tr")].some(
		r => r.innerText.includes("full") && r.querySelector(".bar.full") && r.cells[4].innerText.includes("MiB"))`)
	b.until("a volume whose driver this host does not have is in order", `[...document.querySelectorAll("tbody tr")].every(
		r => !r.innerText.startsWith("elsewhere") || !r.querySelector(".wrong"))`)
	b.shape("/volumes")
	b.pictures("troubles-volumes")

	b.open(site + "/volumes/default/full")
	b.live()
	b.until("times are the browser's", `[...document.querySelectorAll(".events time")].every(e => {
		const local = new Date(e.dateTime).getHours() == Number(e.textContent.slice(6, 8));
		return local && e.title.endsWith(" UTC") && !e.textContent.includes("UTC");
	})`)
	b.pictures("troubles-volume-full")
	b.open(site + "/drivers/elsewhere")
	b.live()
	b.sees(".events", c.kept.Name)
	b.open(site + "/volumes/default/in-use")
	b.live()
	b.sees(".way dd", "on "+c.kept.Name+": "+kill)
	b.sees(".events", c.kept.Name) // its workload's
	b.pictures("troubles-volume-in-use")

	b.open(site + "/volumes/default/lost")
	b.live()
	b.sees(".way dd", "if the machine is off: pannier volume detach -force")
	b.open(site + "/releases")
	b.live()
	b.sees("tbody td", "on "+c.kept.Name+": "+kill)
	b.shape("/releases")
	b.pictures("troubles-releases")

	b.open(site + "/workloads")
	b.live()
	b.until("what stops or is stuck is first", `(() => {
		const states = [...document.querySelectorAll("tbody tr .badge")].map(e => e.innerText);
		return states.filter(s => s == "stopping").length >= 4 && states.includes("unknown") &&
			states.indexOf("running") > states.lastIndexOf("stopping") && states.indexOf("running") > states.lastIndexOf("unknown");
	})()`)
	b.pictures("troubles-workloads")
	for _, path := range []string{"/", "/nodes", "/nodes/" + c.lost.Name, "/events", "/drivers", "/plugins", "/services"} {
		b.open(site + path)
		b.live()
		b.sees("main", "") // the content
		b.looks()
		b.pictures("troubles" + strings.TrimSuffix(strings.ReplaceAll(path, "/", "-"), "-"))
	}
}

// fail makes ten volumes fail, and returns the process that uses the one of them.
func (c *troubles) fail() (user int) {
	faulty := func(id, rpc string, f faultydriver.Fault) {
		d := faultydriver.Start(c.t, faultydriver.Config{Mounts: true, NodeID: id, Without: []string{"VOLUME_ACCESSIBILITY_CONSTRAINTS"}})
		c.server.Run("driver", "register", id, "-endpoint", d.Endpoint())
		c.create(id, id)
		switch rpc {
		case "":
			c.AwaitStarted(c.server, id, id)
			d.Stop()
		case "NodeStageVolume":
			d.Always(rpc, f)
			begin(c.t, c.server.Command("workload", "start", c.Workload(c.server, id, id)))
		case "NodeGetVolumeHealth":
			d.Always(rpc, f)
			c.AwaitStarted(c.server, id, id)
			return
		default:
			c.AwaitStarted(c.server, id, id)
			d.Always(rpc, f)
			begin(c.t, c.server.Command("workload", "stop", id))
		}
		c.t.Cleanup(func() { d.Always(rpc, faultydriver.OK()) })
	}
	faulty("unpublish-fails", "NodeUnpublishVolume", faultydriver.Code(codes.Internal, "the target is busy\rand this is the driver's second line"))
	faulty("unstage-fails", "NodeUnstageVolume", faultydriver.Code(codes.Internal, "cannot log out of iqn.2001-04.com.example:storage.disk2.sys1.xyz"))
	faulty("detach-fails", "ControllerUnpublishVolume", faultydriver.Code(codes.Internal, "the storage array does not answer"))
	faulty("stage-fails", "NodeStageVolume", faultydriver.Code(codes.Unavailable, "no path to the device"))
	faulty("abnormal", "NodeGetVolumeHealth", faultydriver.Reply(&csi.NodeGetVolumeHealthResponse{
		VolumeHealth: &csi.VolumeHealth{HealthStatuses: []*csi.VolumeHealth_VolumeHealthEntry{{Message: "the mirror has lost a half"}}},
	}))
	faulty("driver-gone", "", faultydriver.OK())

	c.create("full", "local", "-node", c.kept.Name)
	c.AwaitStarted(c.kept, "full", "full")
	_ = c.kept.InNamespace("dd", "if=/dev/zero", "of="+c.path(c.kept, "full")+"/zeros", "bs=1M").Run() // until there is no room
	elsewhere := faultydriver.Start(c.t, faultydriver.Config{NodeID: "elsewhere"})
	c.kept.Run("driver", "register", "elsewhere", "-endpoint", elsewhere.Endpoint())
	c.create("elsewhere", "elsewhere")
	c.Volume(c.server, "in-use", "single-node-writer")
	c.AwaitStarted(c.kept, "in-use", "in-use")
	holder := c.kept.InNamespace("sh", "-c", "cd '"+c.path(c.kept, "in-use")+"' && exec sleep 3600")
	begin(c.t, holder)
	user = holder.Process.Pid
	c.kept.Eventually("the volume is used", func() error {
		if at, err := exec.Command("readlink", fmt.Sprintf("/proc/%d/cwd", user)).Output(); err != nil || !strings.Contains(string(at), "in-use") {
			return fmt.Errorf("it is at %s: %w", at, err)
		}
		return nil
	})
	begin(c.t, c.kept.Command("workload", "stop", "in-use"))
	for _, id := range []string{"lost", "lost-and-stopped"} {
		c.Volume(c.server, id, "single-node-writer")
		c.AwaitStarted(c.lost, id, id)
	}
	c.lost.Kill()
	c.server.AwaitNode(c.lost.Name, "disconnected")
	begin(c.t, c.server.Command("volume", "detach", "lost-and-stopped", c.lost.Name))
	c.server.Eventually("the releases fail", func() error {
		for _, id := range []string{"unpublish-fails", "unstage-fails", "detach-fails", "in-use"} {
			res, err := c.server.Client().Volumes.ExplainVolume(testhost.Soon(c.t), &hostv1.ExplainVolumeRequest{Id: id})
			if err != nil {
				return err
			}
			if len(res.GetClaims()) == 0 || res.GetClaims()[0].GetLastError() == "" {
				return fmt.Errorf("%s does not fail yet: %v", id, res)
			}
		}
		return nil
	})
	return user
}

// begin starts a program that ends with the test.
func begin(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	check.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
}

// create makes a volume of a driver.
func (c *troubles) create(id, driver string, args ...string) {
	spec := c.server.Write(id+".volume.hcl", fmt.Sprintf(`
id        = %q
type      = "csi"
plugin_id = %q
capacity_min = "16MiB"
capacity_max = "16MiB"
capability {
  access_mode     = "single-node-writer"
  attachment_mode = "file-system"
}
`, id, driver))
	c.server.Eventually("volume "+id+" is created", func() error {
		if r := c.server.Try(append(append([]string{"volume", "create"}, args...), spec)...); r.Code != 0 {
			return errors.New(r.Stderr)
		}
		return nil
	})
}

// path is where a host has mounted the only volume of a workload.
func (c *troubles) path(on *testhost.Host, workload string) string {
	w := check.Must(on.Client().Workloads.GetWorkload(testhost.Soon(c.t), &hostv1.GetWorkloadRequest{Id: workload}))(c.t)
	return w.GetWorkload().GetMounts()[0].GetHostPath()
}
