package cli

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/pannier/pannier/cluster/claim"
)

// mountRequest is what mount(8) wants of its helper: mount.pannier SOURCE TARGET [-sfnv] [-N NAMESPACE] [-o OPTIONS]
// [-t TYPE].
type mountRequest struct {
	source, target, namespace, access string
	readOnly, fake                    bool
	timeout                           time.Duration
	// flags are for the mount at the target, driver for the driver.
	flags, driver []string
	workload      string
}

// umountRequest is what umount(8) wants: umount.pannier TARGET [-flnrv] [-N NAMESPACE] [-t TYPE].
type umountRequest struct {
	target string
	lazy   bool
	flags  []string
}

// perMount are the options of mount(8) that concern one mount of a file system, and those that only mount(8) reads.
var (
	perMount = []string{
		"nosuid", "nodev", "noexec", "exec", "noatime", "atime", "nodiratime", "diratime", "relatime", "norelatime", "strictatime",
		"nostrictatime",
	}
	onlyOfMount = []string{
		"defaults", "rw", "suid", "dev", "auto", "noauto", "nofail", "_netdev", "user", "nouser", "users", "nousers", "owner",
		"noowner", "group", "nogroup", "silent", "loud",
	}
	refusedByMount = []string{"bind", "rbind", "move", "remount", "loop", "helper", "uhelper"}
)

// helperArgs splits a helper's arguments: letters without a value are in flags.
func helperArgs(args []string, withValue string) (names []string, flags string, values map[rune]string, err error) {
	values = map[rune]string{}
	for n := 0; n < len(args); n++ {
		arg := args[n]
		if len(arg) < 2 || arg[0] != '-' {
			names = append(names, arg)
			continue
		}
		for at, letter := range arg[1:] {
			if !strings.ContainsRune(withValue, letter) {
				flags += string(letter)
				continue
			}
			value := arg[at+2:]
			if value == "" {
				if n++; n == len(args) {
					return nil, "", nil, wrongMount("-%c needs a value", letter)
				}
				value = args[n]
			}
			if old := values[letter]; old != "" {
				value = old + "," + value
			}
			values[letter] = value
			break
		}
	}
	if _, is := values['N']; is {
		return nil, "", nil, wrongMount("-N: volumes are mounted in the agent's mount namespace")
	}
	return names, flags, values, nil
}

func parseMount(args []string) (*mountRequest, error) {
	names, flags, values, err := helperArgs(args, "oNt")
	if err != nil {
		return nil, err
	}
	if len(names) != 2 {
		return nil, wrongMount("want a volume and a mount point, such as: mount -t pannier pannier:data /data")
	}
	r := &mountRequest{
		source: strings.TrimPrefix(names[0], "pannier:"), namespace: claim.DefaultNamespace, timeout: mountWait,
		fake: strings.Contains(flags, "f"),
	}
	if r.target, err = filepath.Abs(names[1]); err != nil {
		return nil, err
	}
	if strings.HasPrefix(r.source, "/") {
		return nil, wrongMount("the source %q is not the id of a volume: write pannier:ID, since mount(8) makes a path of the "+
			"name of a file in the present directory", names[0])
	}
	if err := claim.CheckVolumeID(r.source); err != nil {
		return nil, wrongMount("the source %q is not the id of a volume: %w", names[0], err)
	}
	for option := range strings.SplitSeq(values['o'], ",") {
		if err := r.option(option); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// option takes one option. What is not known here is for the driver.
func (r *mountRequest) option(option string) (err error) {
	name, value, valued := strings.Cut(option, "=")
	switch {
	case option == "" || slices.Contains(onlyOfMount, option) || strings.HasPrefix(name, "x-") || name == "comment":
	case option == "ro":
		r.readOnly = true
	case name == "namespace" && valued:
		if err := claim.CheckID(value); err != nil {
			return wrongMount("option namespace: %w", err)
		}
		r.namespace = value
	case name == "access" && valued:
		if !slices.Contains(claim.AccessModes, claim.AccessMode(value)) {
			return wrongMount("option access: unknown access mode %q, want one of %q", value, claim.AccessModes)
		}
		r.access = value
	case name == "timeout" && valued:
		if r.timeout, err = mountTimeout(value); err != nil {
			return err
		}
	case slices.Contains(refusedByMount, name):
		return wrongMount("option %s is not possible: unmount the volume, and mount it again as it should be", name)
	case slices.Contains(perMount, option):
		r.flags = append(r.flags, option)
	default:
		r.driver = append(r.driver, option)
	}
	return nil
}

// mountTimeout reads a number of seconds, or a duration as Go writes it.
func mountTimeout(value string) (time.Duration, error) {
	d, err := time.ParseDuration(value)
	if err != nil {
		d, err = time.ParseDuration(value + "s")
	}
	if err != nil || d <= 0 {
		return 0, wrongMount("option timeout: %q is not a positive number of seconds, or a duration such as 2m", value)
	}
	return d, nil
}

func parseUmount(args []string) (*umountRequest, error) {
	names, flags, _, err := helperArgs(args, "Nt")
	if err != nil {
		return nil, err
	}
	if len(names) != 1 {
		return nil, wrongMount("want a mount point, such as: umount /data")
	}
	r := &umountRequest{lazy: strings.Contains(flags, "l")}
	if r.target, err = filepath.Abs(names[0]); err != nil {
		return nil, err
	}
	for _, letter := range flags {
		if strings.ContainsRune("flr", letter) {
			r.flags = append(r.flags, "-"+string(letter))
		}
	}
	return r, nil
}

// mountWorkload returns the id of the workload that has the volume mounted at a path of a node: the path as systemd
// escapes it (systemd-escape(1)), with _ for \, which ids do not have.
func mountWorkload(target, node string) string {
	var path strings.Builder
	for n, c := range []byte(strings.Trim(target, "/")) {
		switch {
		case c == '/':
			path.WriteByte('-')
		case c == '.' && n > 0, '0' <= c && c <= '9', 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z':
			path.WriteByte(c)
		default:
			fmt.Fprintf(&path, "_x%02x", c)
		}
	}
	id := "mount." + path.String() + "." + node
	if len(id) > claim.MaxID {
		sum := sha256.Sum256([]byte(id))
		tail := "." + hex.EncodeToString(sum[:8])
		id = id[:claim.MaxID-len(tail)] + tail
	}
	return id
}
