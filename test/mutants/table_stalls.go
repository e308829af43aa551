package main

const stallsSuite = "./test/suite/stalls"

// stalls are planted bugs of what fails around an agent.
var stalls = []mutant{
	{
		name: "readers-wait-for-commits", promise: "a disk that hangs lets people look",
		in: "cluster/state", decl: "Store.View",
		old: "snapshot := g.enter()",
		new: "snapshot := &shared{txn: g.db.NewTransaction(false), holders: 1}",
		pkg: stallsSuite, run: "^TestHost$/^group$/^disks$/while_it_is_written",
	},
	{
		name: "record-written-under-its-lock", promise: "a disk that hangs lets people look",
		in: "host/internal/workload", decl: "instance.saveOr",
		old: "	i.mu.Unlock()\n	if !i.forgotten {\n		err = i.journal.Update(func(tx *journal.Tx) error {\n			return journal.Bucket[json.RawMessage](records).Put(tx, key(i.ref), (*json.RawMessage)(&raw))\n		})\n	}\n	i.mu.Lock()\n",
		new: "	if !i.forgotten {\n		err = i.journal.Update(func(tx *journal.Tx) error {\n			return journal.Bucket[json.RawMessage](records).Put(tx, key(i.ref), (*json.RawMessage)(&raw))\n		})\n	}\n",
		pkg: stallsSuite, run: "^TestHost$/^group$/^disks$/while_it_is_written",
	},
	{
		name: "term-not-repeated", promise: "a disk that fails does not take the agent along",
		in: "cluster/raftnode", decl: "stable.repeat",
		old: "			if err == nil {\n				return nil\n			}\n",
		new: "			if err == nil || !said {\n				return err\n			}\n",
		pkg: stallsSuite, run: "^TestHost$/^group$/^(every_call_for_the_disk|the_disk_becomes)",
	},
	{
		name: "damaged-record-ends-the-start", promise: "an agent starts with any file of its data directory damaged",
		in: "host/internal/csi/drivers", decl: "loadRecord",
		old: "managed.ErrDamaged, err)",
		new: "errors.ErrUnsupported, err)",
		pkg: "./host/internal/csi/drivers", run: "^TestDamagedRecordIsSetAside$",
	},
	{
		name: "process-of-a-damaged-record-stays", promise: "the process of a damaged record is ended",
		in: "host/internal/system/process", decl: "EndUnrecorded",
		old: "token != \"\" && !recorded[token]",
		new: "token != \"\" && recorded[token]",
		pkg: "./host/internal/csi/drivers", run: "^TestDamagedRecordIsSetAside$",
	},
	{
		name: "authority-stays-damaged", promise: "an agent starts with any file of its data directory damaged",
		in: "host/internal/pluginhost/supervisor", decl: "loadAuthority",
		old: "		if damage == nil {\n			return a, nil\n		}\n",
		new: "		if damage == nil || a == nil {\n			return a, damage\n		}\n",
		pkg: stallsSuite, run: "^TestHost$/^group$/^starts$/^(nothing|any_file)",
	},
	{
		name: "list-of-one-place", promise: "a list has what the controllers of all places have",
		in: "host/internal/csi/controllers", decl: "Controllers.placesToAsk",
		old: "len(places) > 1",
		new: "len(places) > 99",
		pkg: "./host/internal/csi/controllers", run: "^TestListOfAllPlaces$",
	},
	{
		name: "volume-of-an-unready-snapshot", promise: "no volume is made of a snapshot that is not ready to use",
		in: "host/internal/apiserver/volumes", decl: "Handler.create",
		old: "!from.Ready",
		new: "from.Ready",
		pkg: "./test/suite/e2e", run: "^TestSnapshotThatIsNotReady$",
	},
}
