package systemd

import (
	"errors"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/pannier/pannier/test/lib/testsystemd"
)

// TestPackageContents compares what the packages for several systems have.
func TestPackageContents(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("dpkg-deb"); err != nil {
		t.Skip("needs dpkg-deb; not covered: that packages of several kinds have the same files")
	}
	dir := packages(t, "1.0.0", "deb", "rpm", "apk")
	deb := listed(t, "dpkg-deb --fsys-tarfile "+dir+"/*.deb | tar -t")
	apk := listed(t, "tar -t -z -f "+dir+"/*.apk")
	units := []string{
		"usr/lib/systemd/system/pannier-workload@.service", "usr/lib/systemd/system/pannier.service",
		"usr/lib/systemd/system/pannier.socket", "usr/lib/systemd/system/pannier-docker.socket", generator[1:],
	}
	own := map[string][]string{
		"deb": append([]string{
			"usr/share/doc/pannier/changelog.gz", "usr/share/doc/pannier/copyright", "usr/share/lintian/overrides/pannier",
			"usr/share/zsh/vendor-completions/_pannier",
		}, units...),
		"rpm": append([]string{"usr/share/licenses/pannier/LICENSE", "usr/share/zsh/site-functions/_pannier"}, units...),
		"apk": {
			"PKGINFO", "etc/init.d/pannier", "post-install", "post-upgrade", "pre-deinstall",
			"usr/share/licenses/pannier/LICENSE", "usr/share/zsh/site-functions/_pannier",
		},
	}
	common := without(t, deb, own["deb"])
	for _, path := range []string{
		"etc/pannier/agent.hcl", "usr/lib/pannier/SHA256SUMS", "usr/lib/pannier/SHA256SUMS.minisig", "usr/sbin/mount.pannier",
	} {
		if !slices.Contains(common, path) {
			t.Errorf("the package of Debian lacks %s: %q", path, common)
		}
	}
	if got := without(t, apk, own["apk"]); !slices.Equal(got, common) {
		t.Errorf("the package of Alpine has %q, not %q", got, common)
	}
	if _, err := exec.LookPath("rpm"); err != nil {
		t.Log("there is no rpm; not covered: what is in the package for it")
		return
	}
	if got := without(t, listed(t, "rpm -qp --queryformat '[%{FILEMODES:perms} %{FILENAMES}\\n]' "+dir+"/*.rpm | sed -n '/^d/!s,^[^/]*,,p'"), own["rpm"]); !slices.Equal(got, common) {
		t.Errorf("the package for rpm has %q, not %q", got, common)
	}
}

// without returns paths without those that must be among them.
func without(t *testing.T, paths, own []string) []string {
	t.Helper()
	for _, path := range own {
		if !slices.Contains(paths, path) {
			t.Errorf("there is no %s in %q", path, paths)
		}
	}
	return slices.DeleteFunc(slices.Clone(paths), func(path string) bool { return slices.Contains(own, path) })
}

// listed returns the files that a command lists, without folders.
func listed(t *testing.T, command string) (paths []string) {
	t.Helper()
	out, err := exec.Command("sh", "-c", command).Output()
	if err != nil {
		t.Fatalf("%s: %v", command, err)
	}
	for path := range strings.Lines(string(out)) {
		path = strings.TrimLeft(strings.TrimSpace(path), "./")
		if path != "" && !strings.HasSuffix(path, "/") {
			paths = append(paths, path)
		}
	}
	slices.Sort(paths)
	return paths
}

// TestPackageOfRPM installs, upgrades and removes the package for rpm, whose scripts are called otherwise than dpkg's.
func TestPackageOfRPM(t *testing.T) {
	t.Parallel()
	const notCovered = "the package for rpm"
	if _, err := exec.LookPath("rpm"); err != nil {
		t.Skipf("needs rpm; not covered: %s", notCovered)
	}
	h := &host{testsystemd.New(t, notCovered), t}
	for _, version := range []string{"1.0.0", "2.0.0"} {
		found := listed(t, "ls "+packages(t, version, "rpm")+"/*.rpm")
		h.Install("/"+found[0], "/root/"+version+".rpm")
	}
	rpm := func(args ...string) []string {
		return append([]string{"rpm", "--dbpath", "/var/lib/rpm", "--nodeps", "--force-debian"}, args...)
	}
	h.Run("rpm", "--dbpath", "/var/lib/rpm", "--initdb")
	h.Boot()

	h.Run(rpm("--install", "/root/1.0.0.rpm")...)
	for _, unit := range []string{"pannier.service", "pannier.socket"} {
		h.is(unit, "active")
		h.Run("systemctl", "is-enabled", unit)
	}
	h.verified("1.0.0")
	h.Run("sh", "-c", "pannier volume init - | pannier volume create - && mkdir /data && mount -t pannier pannier:data /data")
	h.Run("sh", "-c", "date >/data/file; sleep 1000 >/dev/null 2>&1 </data/file & echo $! >/run/app")
	h.Run("sh", "-c", "echo '# ours' >>/etc/pannier/agent.hcl")
	agent := h.pid()
	kept := func(version string) {
		t.Helper()
		h.serves(version)
		h.Run("sh", "-c", "kill -0 $(cat /run/app) && test -s /data/file")
		if now := h.pid(); now != agent || !h.claimed("data") || !strings.Contains(h.Read("/etc/pannier/agent.hcl"), "# ours") {
			t.Errorf("with %s: the agent's process is %d, and was %d; claimed: %t; the configuration: %s", version, now, agent,
				h.claimed("data"), h.Read("/etc/pannier/agent.hcl"))
		}
		for _, unit := range []string{"pannier.service", "pannier.socket"} {
			h.is(unit, "active")
			h.Run("systemctl", "is-enabled", unit)
		}
	}

	h.while("the package is upgraded", nil, func() { h.Run(rpm("--upgrade", "/root/2.0.0.rpm")...) })
	kept("2.0.0")
	h.verified("2.0.0")
	h.Run("systemctl", "disable", "pannier.socket")
	h.Run(rpm("--upgrade", "--oldpackage", "/root/1.0.0.rpm")...)
	if out, err := h.Try("systemctl", "is-enabled", "pannier.socket"); err == nil {
		t.Errorf("a unit that the administrator has disabled is %s", out)
	}
	h.Run("systemctl", "enable", "pannier.socket")
	kept("1.0.0")
	if out, err := h.Try(rpm("--erase", "pannier")...); err == nil || !strings.Contains(out, "workloads of this host") {
		t.Errorf("it is removed while a workload has a volume: %v: %s", err, out)
	}
	kept("1.0.0")

	h.Run("sh", "-c", "kill $(cat /run/app); umount /data")
	h.Run(rpm("--erase", "pannier")...)
	h.without()
	h.gone("/etc/pannier/agent.hcl", "/usr/share/doc/pannier", "/usr/share/licenses/pannier", "/etc/systemd/system/multi-user.target.wants/pannier.service",
		"/etc/systemd/system/sockets.target.wants/pannier.socket")
	h.are("/etc/pannier/agent.hcl.rpmsave", "/var/lib/pannier/ledger", "/var/lib/pannier/volumes")

	h.Run(rpm("--install", "/root/2.0.0.rpm")...)
	h.Run("mount", "-t", "pannier", "pannier:data", "/data")
	if h.Read("/data/file") == "" {
		t.Error("the volume has lost its file")
	}
}

// TestPackageOfAlpine runs what the package of Alpine has for OpenRC under OpenRC. Its files are copied into place, and
// its scripts run by busybox in apk's order, since there is no apk but on Alpine.
func TestPackageOfAlpine(t *testing.T) {
	t.Parallel()
	const notCovered = "the package of Alpine"
	for _, program := range []string{"openrc-run", "busybox"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("needs %s (Debian: openrc, busybox-static); not covered: %s", program, notCovered)
		}
	}
	h := &host{testsystemd.New(t, notCovered), t}
	put := func(version string) {
		h.Install("/"+listed(t, "ls "+packages(t, version, "apk")+"/*.apk")[0], "/root/"+version+".apk")
	}
	put("1.0.0")
	put("2.0.0")
	h.Boot()
	h.Run("sh", "-c", `for state in daemons exclusive failed hotplugged inactive options scheduled snapshot started starting stopping tmp wasinactive; do
			mkdir -p /run/openrc/$state
		done
		mkdir -p /etc/init.d /etc/conf.d /etc/runlevels/default
		touch /run/openrc/softlevel
		for service in localmount net; do
			printf '#!/sbin/openrc-run\nstart() { :; }\n' >/etc/init.d/$service; chmod 755 /etc/init.d/$service
		done`)
	unpack := func(version string) {
		h.Run("sh", "-c", `set -e
			rm -rf /root/apk; mkdir /root/apk; cd /root/apk; tar -x -z -f "/root/$0.apk" 2>/dev/null
			[ ! -e /etc/pannier/agent.hcl ] || rm etc/pannier/agent.hcl
			cp -R -d --preserve=mode --remove-destination etc usr /`, version)
	}
	script := func(args ...string) string {
		args[0] = "/root/apk/." + args[0]
		out, err := h.Try(append([]string{"busybox", "sh"}, args...)...)
		if err != nil {
			t.Fatalf("%v: %v\n%s", args, err, out)
		}
		return out
	}
	unpack("1.0.0")
	if out := script("post-install", "1.0.0"); !strings.Contains(out, "rc-service pannier start") {
		t.Errorf("it is not said how the agent is started: %s", out)
	}
	script("post-upgrade", "1.0.0", "0.9.0") // there is no agent
	h.Run("rc-update", "add", "pannier", "default")
	h.Run("rc-service", "pannier", "start")
	if err := h.answers(); err != nil {
		t.Errorf("the service has started, and the agent does not answer: %v", err)
	}
	h.verified("1.0.0")
	h.Run("sh", "-c", "pannier volume init - | pannier volume create - && mkdir /data && mount -t pannier pannier:data /data")
	h.Run("rc-service", "pannier", "reload")
	h.Run("sh", "-c", "cp /etc/pannier/agent.hcl /root && echo 'nonsense = 1' >>/etc/pannier/agent.hcl")
	if out, err := h.Try("rc-service", "pannier", "reload"); err == nil || !strings.Contains(out, "nonsense") {
		t.Errorf("a configuration with a mistake is taken: %s", out)
	}
	h.Run("cp", "/root/agent.hcl", "/etc/pannier/agent.hcl")

	h.Run("sh", "-c", "kill -9 $(pidof pannier-agent)")
	h.Eventually("the supervisor has started another agent", h.answers)
	unpack("2.0.0")
	h.while("the package is upgraded", nil, func() { script("post-upgrade", "2.0.0", "1.0.0") })
	h.serves("2.0.0")
	if !h.claimed("data") || !h.mounted("/data") {
		t.Errorf("after an upgrade: claimed: %t, mounted: %t", h.claimed("data"), h.mounted("/data"))
	}
	if out, err := h.Try("busybox", "sh", "/root/apk/.pre-deinstall", "2.0.0"); err == nil ||
		!strings.Contains(out, "workloads of this host") {
		t.Errorf("it is removed while a workload has a volume: %v: %s", err, out)
	}
	h.serves("2.0.0")
	h.Run("umount", "/data")
	script("pre-deinstall", "2.0.0")
	h.gone("/etc/runlevels/default/pannier")
	h.Eventually("no process is left", func() error {
		if out, err := h.Try("pgrep", "-a", "-f", "^(/usr/bin/pannier|/usr/lib/pannier|/var/lib/pannier)"); err == nil {
			return errors.New(out)
		}
		return nil
	})
}
