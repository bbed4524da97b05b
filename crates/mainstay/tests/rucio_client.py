"""The stock client of Rucio against a Mainstay server, with the rucio.cfg that the server wrote.

RUCIO_CONFIG names that file. FOLDER is where storage may be made. Every resource is led through its
whole life, errors included; the last line says that all is well.
"""

import getpass
import os
import shutil
import subprocess
import sys
import tempfile
from datetime import datetime, timedelta

from rucio.client.client import Client
from rucio.common import exception
from rucio.common.exception import (
    AccessDenied, AccountNotFound, CannotAuthenticate, DataIdentifierAlreadyExists, DataIdentifierNotFound,
    Duplicate, DuplicateContent, DuplicateRule, FileAlreadyExists, InputValidationError, InsufficientAccountLimit,
    InvalidObject, InvalidPath, InvalidRSEExpression, InvalidSourceReplicaExpression, ReplicaIsLocked,
    ReplicaNotFound, RequestNotFound, RSENotFound, RSEProtocolNotSupported, RuleNotFound, RuleReplaceFailed,
    ScopeNotFound, UnsupportedOperation,
)

FOLDER = os.environ["FOLDER"]
BIN = os.path.dirname(sys.executable)


def refused(kind, call, *arguments, **named):
    """The call must raise exactly this exception; gives its text."""
    try:
        found = call(*arguments, **named)
        if hasattr(found, "__next__"):
            list(found)
    except kind as error:
        return str(error)
    raise AssertionError(f"{call} {arguments} {named} was not refused with {kind.__name__}")


def forget_tokens():
    """The client keeps its tokens below the folder for temporary files."""
    shutil.rmtree(os.path.join(tempfile.gettempdir(), getpass.getuser()), ignore_errors=True)


def rucio(*words, code=0):
    """Runs the command; gives what it said."""
    done = subprocess.run([os.path.join(BIN, "rucio"), *words], capture_output=True, text=True)
    assert (done.returncode == 0) == (code == 0), (words, done.returncode, done.stdout, done.stderr)
    return done.stdout + done.stderr


def accounts(c):
    assert c.ping() == {"version": "41.5.1"}
    who = c.whoami()
    assert who["account"] == "root" and isinstance(who["created_at"], (str, datetime)), who
    c.add_account("alice", "USER", "a@example.org")
    refused(Duplicate, c.add_account, "alice", "USER", "a@example.org")
    refused(AccountNotFound, c.get_account, "nobody")
    refused(InvalidObject, c.add_account, "robert'); DROP TABLE accounts;--", "USER", "x")
    assert c.get_account("alice")["email"] == "a@example.org"
    c.update_account("alice", "email", "b@example.org")
    assert c.get_account("alice")["email"] == "b@example.org"
    refused(InputValidationError, c.update_account, "alice", "colour", "red")
    assert {one["account"] for one in c.list_accounts()} == {"root", "alice"}
    assert [one["account"] for one in c.list_accounts(account_type="USER")] == ["alice"]
    c.add_identity("alice", "alice", "USERPASS", "a@example.org", password="a long word", default=True)
    refused(Duplicate, c.add_identity, "alice", "alice", "USERPASS", "a@example.org", password="other")
    assert [one["identity"] for one in c.list_identities("alice")] == ["alice"]
    c.add_account_attribute("alice", "country", "ch")
    assert list(c.list_account_attributes("alice"))[0] == [{"key": "country", "value": "ch"}]
    c.delete_account_attribute("alice", "country")
    assert list(c.list_account_attributes("alice"))[0] == []
    refused(exception.KeyNotFound, c.delete_account_attribute, "alice", "country")
    refused(InvalidObject, c.add_account_attribute, "alice", "two words", "x")
    refused(AccountNotFound, c.add_account_attribute, "nobody", "country", "ch")
    refused(InvalidObject, c.add_identity, "alice", "x", "NONSENSE", "a@example.org", password="a long word")
    refused(exception.IdentityError, c.del_identity, "alice", "nobody", "USERPASS")
    refused(ScopeNotFound, c.list_scopes_for_account, "alice")
    c.add_scope("alice", "user.alice")
    refused(Duplicate, c.add_scope, "alice", "user.alice")
    assert c.list_scopes_for_account("alice") == ["user.alice"] and "user.alice" in c.list_scopes()
    assert {"scope": "user.alice", "account": "alice"} in list(c.list_scope_owners())
    c.add_scope("root", "given")
    c.update_scope("alice", "given")
    assert {"scope": "given", "account": "alice"} in list(c.list_scope_owners())
    refused(ScopeNotFound, c.update_scope, "alice", "nowhere")
    c.add_account("temp", "SERVICE", "t@example.org")
    c.update_account("temp", "status", "SUSPENDED")
    assert c.get_account("temp")["status"] == "SUSPENDED"
    c.delete_account("temp")
    refused(AccountNotFound, c.get_account, "temp")


def sites(c):
    for name in ["SITE-A", "SITE-B", "SITE-C"]:
        c.add_rse(name, deterministic=True)
    refused(Duplicate, c.add_rse, "SITE-A")
    refused(InvalidObject, c.add_rse, "lower case")
    refused(RSENotFound, c.get_rse, "NOWHERE")
    c.add_rse_attribute("SITE-A", "tier", 1)
    c.add_rse_attribute("SITE-B", "tier", 1)
    c.add_rse_attribute("SITE-C", "tier", 2)
    assert c.list_rse_attributes("SITE-A") == {"SITE-A": True, "tier": "1"} or c.list_rse_attributes("SITE-A")["tier"] in (1, "1")
    c.add_rse_attribute("SITE-C", "gone", "soon")
    c.delete_rse_attribute("SITE-C", "gone")
    assert "gone" not in c.list_rse_attributes("SITE-C")
    refused(exception.RSEAttributeNotFound, c.delete_rse_attribute, "SITE-C", "gone")
    assert [one["rse"] for one in c.list_rses("tier=1")] == ["SITE-A", "SITE-B"]
    assert {one["rse"] for one in c.list_rses()} == {"SITE-A", "SITE-B", "SITE-C"}
    refused(InvalidRSEExpression, c.list_rses, "tier=7")
    refused(InvalidRSEExpression, c.list_rses, "(tier=1")
    c.update_rse("SITE-C", {"availability_write": False})
    assert c.get_rse("SITE-C")["availability_write"] is False
    c.update_rse("SITE-C", {"availability_write": True})
    refused(InvalidObject, c.update_rse, "SITE-C", {"rse_type": "FLOPPY"})
    refused(InputValidationError, c.update_rse, "SITE-C", {"colour": "red"})
    refused(InputValidationError, c.add_rse, "SITE-X", colour="red")
    for name in ["SITE-A", "SITE-B"]:
        prefix = os.path.join(FOLDER, name.lower())
        os.makedirs(prefix, exist_ok=True)
        everything = {"read": 1, "write": 1, "delete": 1}
        domains = {"lan": everything, "wan": {**everything, "third_party_copy_read": 1, "third_party_copy_write": 1}}
        c.add_protocol(name, {
            "scheme": "file", "hostname": "localhost", "port": 0, "prefix": prefix,
            "impl": "rucio.rse.protocols.posix.Default", "domains": domains, "extended_attributes": None,
        })
    refused(Duplicate, c.add_protocol, "SITE-A", {"scheme": "file", "hostname": "localhost", "port": 0, "prefix": "/x"})
    assert c.get_protocols("SITE-A")["protocols"][0]["scheme"] == "file" if isinstance(c.get_protocols("SITE-A"), dict) \
        else c.get_protocols("SITE-A")
    refused(RSEProtocolNotSupported, c.get_protocols, "SITE-A", scheme="gsiftp")
    c.add_protocol("SITE-C", {"scheme": "davs", "hostname": "dav.example.org", "port": 443, "prefix": "/c/"})
    c.update_protocols("SITE-C", scheme="davs", data={"prefix": "/d/"}, hostname="dav.example.org", port=443)
    assert c.get_rse("SITE-C")["protocols"][0]["prefix"] == "/d/"
    named = c.lfns2pfns("SITE-C", ["user.alice:f0"], operation="read")
    assert named["user.alice:f0"].startswith("davs://dav.example.org:443/d/user/alice/"), named
    c.delete_protocols("SITE-C", scheme="davs", hostname="dav.example.org", port=443)
    assert c.get_rse("SITE-C")["protocols"] == []
    c.set_rse_limits("SITE-C", "MinFreeSpace", 10)
    assert c.get_rse_limits("SITE-C") == {"MinFreeSpace": 10} or next(c.get_rse_limits("SITE-C")) == {"MinFreeSpace": 10}
    c.delete_rse_limits("SITE-C", "MinFreeSpace")
    c.set_rse_usage("SITE-C", "storage", used=5, free=95)
    assert any(one["source"] == "storage" and one["total"] == 100 for one in c.get_rse_usage("SITE-C"))
    assert [one["used"] for one in c.get_rse_usage("SITE-C", {"source": "storage"})] == [5]
    refused(RSENotFound, c.get_rse_usage, "NOWHERE")
    refused(exception.NoDistance, c.update_distance, "SITE-A", "SITE-B", {"distance": 2})
    refused(InvalidObject, c.add_distance, "SITE-A", "SITE-B", {"distance": "far"})
    refused(RSENotFound, c.add_distance, "SITE-A", "NOWHERE", {"distance": 3})
    c.add_distance("SITE-A", "SITE-B", {"distance": 3})
    refused(Duplicate, c.add_distance, "SITE-A", "SITE-B", {"distance": 4})
    assert [one["distance"] for one in c.get_distance("SITE-A", "SITE-B")] == [3]
    c.update_distance("SITE-A", "SITE-B", {"distance": 2})
    assert [one["distance"] for one in c.get_distance("SITE-A", "SITE-B")] == [2]
    c.delete_distance("SITE-A", "SITE-B")
    assert c.get_distance("SITE-A", "SITE-B") == []
    c.add_rse("SITE-D")
    c.delete_rse("SITE-D")
    refused(RSENotFound, c.get_rse, "SITE-D")


def quotas(c):
    refused(RSENotFound, c.set_local_account_limit, "alice", "NOWHERE", 5)
    c.set_local_account_limit("alice", "SITE-A", 10_000_000_000)
    c.set_local_account_limit("alice", "SITE-B", -1)
    c.set_local_account_limit("alice", "SITE-B", float("inf"))
    c.set_local_account_limit("alice", "SITE-A", 1e10)
    c.set_global_account_limit("alice", "tier=1", 20_000_000_000)
    assert c.get_local_account_limits("alice") == {"SITE-A": 10_000_000_000, "SITE-B": float("inf")}
    assert c.get_local_account_limit("alice", "SITE-A") == {"SITE-A": 10_000_000_000}
    assert c.get_global_account_limits("alice")["tier=1"]["limit"] == 20_000_000_000
    assert c.get_global_account_limit("alice", "tier=1") == {"tier=1": 20_000_000_000}
    usage = {one["rse"]: one for one in c.get_local_account_usage("alice")}
    assert usage["SITE-B"]["bytes_remaining"] == float("inf") and usage["SITE-A"]["bytes"] == 0
    assert [one["rse_expression"] for one in c.get_global_account_usage("alice")] == ["tier=1"]
    c.set_local_account_limit("alice", "SITE-C", 1)
    c.delete_local_account_limit("alice", "SITE-C")
    assert "SITE-C" not in c.get_local_account_limits("alice")
    c.set_account_limit("alice", "SITE-C", 7, "local")
    assert c.get_account_limits("alice", "SITE-C", "local") == {"SITE-C": 7}
    c.delete_account_limit("alice", "SITE-C", "local")
    c.set_account_limit("alice", "SITE-C", 7, "global")
    assert c.get_account_limits("alice", "SITE-C", "global") == {"SITE-C": 7}
    c.delete_global_account_limit("alice", "SITE-C")
    assert list(c.get_global_account_limits("alice")) == ["tier=1"]
    refused(AccountNotFound, c.set_local_account_limit, "nobody", "SITE-A", 1)
    refused(InvalidObject, c.set_local_account_limit, "alice", "SITE-A", -2)
    refused(RSENotFound, c.set_local_account_limit, "alice", "NOWHERE", 1)


def names(c):
    c.add_dataset("user.alice", "ds1", statuses={"monotonic": False})
    c.add_container("user.alice", "c1")
    refused(DataIdentifierAlreadyExists, c.add_dataset, "user.alice", "ds1")
    refused(ScopeNotFound, c.add_dataset, "nowhere", "ds1")
    for bad in ["a/../../b", "../x", "x/..", "semi;colon", "a' OR '1'='1", ""]:
        refused(exception.RucioException, c.add_dataset, "user.alice", bad)
    refused(DataIdentifierNotFound, c.get_did, "user.alice", "nothing")
    files = [{"scope": "user.alice", "name": f"f{at}", "bytes": 1000 + at, "adler32": "0cc737eb"} for at in range(3)]
    c.add_replicas("SITE-A", files)
    c.add_replicas("SITE-A", files)
    c.add_replicas("SITE-A", files[:1] + files[:1])
    refused(exception.FileConsistencyMismatch, c.add_replicas, "SITE-A", [{**files[0], "bytes": 1}])
    refused(Duplicate, c.add_replicas, "SITE-A", [{**files[0], "state": "C"}])
    refused(InvalidPath, c.add_replicas, "SITE-A",
            [{**files[0], "name": "escape", "pfn": f"file://localhost:0{FOLDER}/site-a/../../etc/passwd"}])
    named = [{"scope": one["scope"], "name": one["name"]} for one in files]
    c.attach_dids("user.alice", "ds1", named)
    refused(FileAlreadyExists, c.attach_dids, "user.alice", "ds1", named[:1])
    refused(DataIdentifierNotFound, c.attach_dids, "user.alice", "ds1", [{"scope": "user.alice", "name": "nosuch"}])
    refused(UnsupportedOperation, c.attach_dids, "user.alice", "c1", named[:1])
    c.attach_dids("user.alice", "c1", [{"scope": "user.alice", "name": "ds1"}])
    refused(DuplicateContent, c.attach_dids, "user.alice", "c1", [{"scope": "user.alice", "name": "ds1"}])
    refused(UnsupportedOperation, c.attach_dids, "user.alice", "c1", [{"scope": "user.alice", "name": "c1"}])
    assert [one["name"] for one in c.list_content("user.alice", "c1")] == ["ds1"]
    assert [one["name"] for one in c.list_files("user.alice", "c1")] == ["f0", "f1", "f2"]
    assert next(iter(c.list_files("user.alice", "ds1", long=True)))["lumiblocknr"] is None
    assert len(list(c.bulk_list_files([{"scope": "user.alice", "name": "ds1"}]))) == 3
    assert c.get_did("user.alice", "c1", dynamic_depth="FILE")["length"] == 3
    assert c.get_did("user.alice", "f0")["bytes"] == 1000
    assert [one["name"] for one in c.list_parent_dids("user.alice", "f0")] == ["ds1"]
    assert sorted(c.list_dids("user.alice", [{"name": "*"}], did_type="all")) == ["c1", "ds1", "f0", "f1", "f2"]
    assert list(c.list_dids("user.alice", [{"name": "ds*"}])) == ["ds1"]
    assert next(iter(c.list_dids("user.alice", {"name": "f1"}, did_type="file", long=True)))["bytes"] == 1001
    assert list(c.list_dids("user.alice", [{"bytes.gt": 1001}], did_type="file")) == ["f2"]
    c.set_metadata("user.alice", "ds1", "colour", "red")
    c.set_metadata_bulk("user.alice", "ds1", {"year": 2026, "project": "x"})
    assert c.get_metadata("user.alice", "ds1", plugin="JSON") == {"colour": "red", "year": 2026}
    assert c.get_metadata("user.alice", "ds1")["project"] == "x"
    assert list(c.list_dids("user.alice", [{"colour": "r*", "year.gte": 2026}])) == ["ds1"]
    assert list(c.get_metadata_bulk([{"scope": "user.alice", "name": "ds1"}]))[0]["name"] == "ds1"
    for key, value in [("bytes", 5), ("is_open", False), ("adler32", "0"), ("run_number", "many")]:
        refused(exception.InvalidMetadata, c.set_metadata, "user.alice", "ds1", key, value)
    c.set_metadata("user.alice", "f0", "guid", "g0")
    assert next(iter(c.list_files("user.alice", "ds1")))["guid"] == "g0"
    c.set_metadata("user.alice", "ds1", "a/b", 1)
    assert c.get_metadata("user.alice", "ds1", plugin="JSON")["a/b"] == 1
    c.delete_metadata("user.alice", "ds1", "a/b")
    c.delete_metadata("user.alice", "ds1", "colour")
    refused(exception.KeyNotFound, c.delete_metadata, "user.alice", "ds1", "colour")
    assert {one["name"] for one in c.scope_list("user.alice")} >= {"c1"}
    c.add_dids([{"scope": "user.alice", "name": "ds2", "type": "DATASET"}, {"scope": "user.alice", "name": "ds3", "type": "DATASET"}])
    c.attach_dids_to_dids([{"scope": "user.alice", "name": "ds2", "dids": named}], ignore_duplicate=True)
    c.attach_dids_to_dids([{"scope": "user.alice", "name": "ds2", "dids": named}], ignore_duplicate=True)
    c.detach_dids("user.alice", "ds2", named[:1])
    assert len(list(c.list_content("user.alice", "ds2"))) == 2
    assert len(list(c.list_content_history("user.alice", "ds2"))) == 1
    c.close("user.alice", "ds2")
    refused(UnsupportedOperation, c.close, "user.alice", "ds2")
    refused(UnsupportedOperation, c.attach_dids, "user.alice", "ds2", named[:1])
    assert c.get_did("user.alice", "ds2")["open"] is False and c.get_did("user.alice", "ds2")["length"] == 2
    c.add_did("user.alice", "c2", "CONTAINER")
    c.add_containers([{"scope": "user.alice", "name": "c3"}])
    c.add_datasets([{"scope": "user.alice", "name": "ds4"}])
    c.add_files_to_dataset("user.alice", "ds4", named)
    c.add_files_to_datasets([{"scope": "user.alice", "name": "ds4", "dids": named}], ignore_duplicate=True)
    c.add_datasets_to_container("user.alice", "c2", [{"scope": "user.alice", "name": "ds4"}])
    c.add_containers_to_container("user.alice", "c3", [{"scope": "user.alice", "name": "c2"}])
    assert [one["name"] for one in c.list_files("user.alice", "c3")] == ["f0", "f1", "f2"]
    refused(UnsupportedOperation, c.add_containers_to_container, "user.alice", "c2", [{"scope": "user.alice", "name": "c3"}])
    c.set_dids_metadata_bulk([{"scope": "user.alice", "name": "ds4", "meta": {"colour": "blue"}}])
    assert c.get_metadata("user.alice", "ds4", plugin="JSON") == {"colour": "blue"}
    c.set_status("user.alice", "ds4", open=False)
    assert c.get_did("user.alice", "ds4")["open"] is False
    c.set_status("user.alice", "ds4", open=True)
    c.add_dataset("user.alice", "files")
    assert c.get_did("user.alice", "files")["type"] == "DATASET"


def replicas(c):
    found = list(c.list_replicas([{"scope": "user.alice", "name": "ds1"}]))
    assert [one["name"] for one in found] == ["f0", "f1", "f2"]
    assert found[0]["states"] == {"SITE-A": "AVAILABLE"}
    physical = list(found[0]["pfns"])[0]
    assert physical.startswith(f"file://localhost:0{FOLDER}/site-a/user/alice/"), physical
    assert found[0]["rses"] == {"SITE-A": [physical]}
    assert list(c.list_replicas([{"scope": "user.alice", "name": "f0"}], schemes=["root"]))[0]["pfns"] == {}
    assert list(c.list_replicas([{"scope": "user.alice", "name": "f0"}], rse_expression="SITE-B"))[0]["states"] == {}
    assert list(c.get_did_from_pfns([physical])) == [{physical: {"scope": "user.alice", "name": "f0"}}]
    assert "<metalink" in c.list_replicas([{"scope": "user.alice", "name": "ds1"}], metalink=True)
    one = {"scope": "user.alice", "name": "loose", "bytes": 7, "adler32": "00000001"}
    c.add_replicas("SITE-B", [one])
    refused(ReplicaNotFound, c.set_tombstone, [{"scope": "user.alice", "name": "loose", "rse": "SITE-C"}])
    c.set_tombstone([{"scope": "user.alice", "name": "loose", "rse": "SITE-B"}])
    c.add_replicas("SITE-C", [{**one, "name": "doomed"}])
    c.delete_replicas("SITE-C", [{"scope": "user.alice", "name": "doomed"}])
    try:
        left = list(c.list_replicas([{"scope": "user.alice", "name": "doomed"}]))
    except exception.DataIdentifierNotFound:
        left = []  # the name goes with its last replica, now or soon
    assert all(not one["states"] for one in left), left
    c.add_replica("SITE-C", "user.alice", "spoilt", 5, "00000001")
    rse = c.get_rse("SITE-C")["id"]
    assert c.declare_bad_file_replicas([{"scope": "user.alice", "name": "spoilt", "rse_id": rse}], "unreadable") == {}
    try:
        left = list(c.list_replicas([{"scope": "user.alice", "name": "spoilt"}], all_states=True))
    except exception.DataIdentifierNotFound:
        left = []  # a bad replica is deleted soon, and its name with it
    assert all(set(one["states"].values()) <= {"UNAVAILABLE", "BEING_DELETED"} for one in left), left
    (unknown,) = c.declare_bad_file_replicas([{"scope": "user.alice", "name": "nosuch", "rse_id": rse}], "x")
    assert unknown == "SITE-C", unknown
    c.add_replica("SITE-C", "user.alice", "spoilt2", 5, "00000001")
    c.declare_bad_did_replicas("SITE-C", [{"scope": "user.alice", "name": "spoilt2"}], "unreadable")
    assert list(c.list_suspicious_replicas()) == []
    assert list(c.list_dataset_replicas("user.alice", "ds1"))[0]["available_length"] == 3
    assert list(c.list_dataset_replicas_bulk([{"scope": "user.alice", "name": "ds1"}]))[0]["rse"] == "SITE-A"


def requests(c, rule):
    """What a rule asks for; nobody moves files here, so that it stays asked for."""
    request = c.list_request_by_did("f0", "SITE-B", scope="user.alice")
    asked = {key: request[key] for key in ["scope", "name", "state", "request_type", "rule_id", "dest_rse", "bytes"]}
    assert asked == {"scope": "user.alice", "name": "f0", "state": "QUEUED", "request_type": "TRANSFER", "rule_id": rule,
                     "dest_rse": "SITE-B", "bytes": 1000}, request
    refused(RequestNotFound, c.list_request_by_did, "f0", "SITE-C", scope="user.alice")
    refused(RequestNotFound, c.list_request_history_by_did, "f0", "SITE-B", scope="user.alice")
    assert [one["name"] for one in c.list_requests(None, "SITE-B", ["Q"])] == ["f0", "f1", "f2"]
    assert list(c.list_requests(None, "SITE-A", ["Q"])) == [] and list(c.list_requests(None, "SITE-B", ["D"])) == []
    assert list(c.list_requests_history(None, "SITE-B", ["D"])) == []
    c.set_transfer_limit("SITE-B", activity="Express", max_transfers=5)
    (limit,) = c.list_transfer_limits()
    assert (limit["rse_expression"], limit["activity"], limit["max_transfers"]) == ("SITE-B", "Express", 5), limit
    c.delete_transfer_limit("SITE-B", activity="Express")
    assert list(c.list_transfer_limits()) == []


def rules(c):
    did = [{"scope": "user.alice", "name": "ds1"}]
    (rule,) = c.add_replication_rule(did, 2, "tier=1", account="alice", comment="two copies", meta={"a": 1})
    refused(DuplicateRule, c.add_replication_rule, did, 2, "tier=1", account="alice")
    refused(InsufficientAccountLimit, c.add_replication_rule, did, 1, "SITE-C", account="alice")
    refused(exception.InsufficientTargetRSEs, c.add_replication_rule, did, 9, "tier=1", account="alice")
    refused(InvalidRSEExpression, c.add_replication_rule, did, 1, "tier=9", account="alice")
    refused(InvalidRSEExpression, c.add_replication_rule, did, 1, "(" * 3000, account="alice")
    refused(InvalidSourceReplicaExpression, c.add_replication_rule, did, 1, "SITE-B", account="alice", source_replica_expression="NOPE")
    refused(exception.InvalidValueForKey, c.add_replication_rule, did, 0, "tier=1", account="alice")
    refused(InvalidObject, c.add_replication_rule, did, 1, "tier=1", account="alice", activity="sleeping")
    refused(DataIdentifierNotFound, c.add_replication_rule, [{"scope": "user.alice", "name": "no"}], 1, "tier=1", account="alice")
    found = c.get_replication_rule(rule)
    assert (found["state"], found["locks_ok_cnt"], found["locks_replicating_cnt"]) == ("REPLICATING", 3, 3), found
    assert found["meta"] == '{"a":1}' or found["meta"] == '{"a": 1}', found["meta"]
    assert isinstance(found["created_at"], datetime)
    refused(RuleNotFound, c.get_replication_rule, "0" * 32)
    refused(RuleNotFound, c.get_replication_rule, "xyz")
    assert [one["id"] for one in c.list_replication_rules({"account": "alice", "scope": "user.*"})] == [rule]
    assert list(c.list_replication_rules({"state": "S"})) == []
    assert [one["id"] for one in c.list_replication_rules({"id": rule, "copies": 2, "locked": False})] == [rule]
    assert list(c.list_replication_rules({"priority": 5})) == []
    assert len(list(c.list_replication_rules({"updated_after": datetime(2020, 1, 1, 0, 0, 0, 5)}))) == 1
    refused(InputValidationError, c.list_replication_rules, {"colour": "red"})
    assert [one["id"] for one in c.list_did_rules("user.alice", "ds1")] == [rule]
    assert [one["id"] for one in c.list_associated_rules_for_file("user.alice", "f0")] == [rule]
    assert [one["id"] for one in c.list_account_rules("alice")] == [rule]
    assert len(list(c.list_replica_locks(rule))) == 6
    assert {one["rse"] for one in c.get_dataset_locks("user.alice", "ds1")} == {"SITE-A", "SITE-B"}
    assert [one["rule_id"] for one in c.get_dataset_locks_by_rse("SITE-A")] == [rule]
    assert len(list(c.get_locks_for_dids([{"scope": "user.alice", "name": "c1", "type": "container"}]))) == 2
    assert list(c.list_replication_rule_full_history("user.alice", "ds1"))[0]["rule_id"] == rule
    c.update_replication_rule(rule, {"lifetime": 3600, "comment": "hi", "priority": 4})
    assert c.get_replication_rule(rule)["expires_at"] > datetime.utcnow() + timedelta(minutes=50)
    refused(InputValidationError, c.update_replication_rule, rule, {"foo": 1})
    refused(InvalidObject, c.update_replication_rule, rule, {"activity": "sleeping"})
    c.update_replication_rule(rule, {"lifetime": None})
    refused(ReplicaIsLocked, c.set_tombstone, [{"scope": "user.alice", "name": "f0", "rse": "SITE-A"}])
    refused(RuleReplaceFailed, c.reduce_replication_rule, rule, 1)
    requests(c, rule)
    assert c.examine_replication_rule(rule) == {
        "rule_error": "This replication rule is currently REPLICATING", "transfers": []}
    files = [{"scope": "user.alice", "name": f"f{at}", "state": "A"} for at in range(3)]
    c.update_replicas_states("SITE-B", files)
    assert c.get_replication_rule(rule)["state"] == "OK"
    assert c.list_request_history_by_did("f0", "SITE-B", scope="user.alice")["state"] == "DONE"
    assert len(list(c.list_requests_history(None, "SITE-B", ["D"]))) == 3
    assert c.examine_replication_rule(rule)["transfers"] == []
    one = c.reduce_replication_rule(rule, 1, exclude_expression="SITE-A")
    refused(RuleNotFound, c.get_replication_rule, rule)
    assert c.get_replication_rule(one)["state"] == "OK"
    moved = c.move_replication_rule(one, "SITE-A", override={})
    assert c.get_replication_rule(moved)["rse_expression"] == "SITE-A"
    refused(UnsupportedOperation, c.move_replication_rule, moved, "SITE-B", override={"zzz": 1})
    (asked,) = c.add_replication_rule(did, 1, "SITE-C", account="alice", ask_approval=True)
    assert c.get_replication_rule(asked)["state"] == "WAITING_APPROVAL"
    c.approve_replication_rule(asked)
    (denied,) = c.add_replication_rule([{"scope": "user.alice", "name": "ds2"}], 1, "SITE-C", account="alice", ask_approval=True)
    c.deny_replication_rule(denied, reason="no")
    refused(RuleNotFound, c.get_replication_rule, denied)
    (locked,) = c.add_replication_rule([{"scope": "user.alice", "name": "ds2"}], 1, "SITE-A", account="alice", locked=True)
    refused(UnsupportedOperation, c.delete_replication_rule, locked)
    c.update_replication_rule(locked, {"locked": False})
    c.delete_replication_rule(locked)
    assert c.get_replication_rule(locked)["expires_at"] is not None
    assert list(c.list_subscriptions(account="root")) == []
    assert list(c.list_subscription_rules("root", "any")) == []
    assert list(c.list_subscription_rule_states("root")) == []
    assert list(c.get_local_account_usage("alice", "SITE-A"))[0]["files"] >= 3
    return moved


def strays(c):
    """What nobody has, what is empty, what is odd: the exception the client knows, or nothing."""
    here = [{"scope": "user.alice", "name": "ds1"}]
    lost = [{"scope": "user.alice", "name": "nowhere"}]
    for call in [c.get_did, c.list_content, c.list_files, c.list_parent_dids, c.list_did_rules, c.get_metadata,
                 c.list_associated_rules_for_file, c.list_content_history, c.list_dataset_replicas,
                 c.list_dataset_replicas_vp, c.get_dataset_locks, c.list_replication_rule_full_history]:
        for name in ["nowhere", "né", "x" * 600, "a/b/c", "%", "' OR 1=1 --"]:
            refused(DataIdentifierNotFound, call, "user.alice", name)
    for call in [c.list_replicas, c.bulk_list_files, c.list_dataset_replicas_bulk]:
        refused(DataIdentifierNotFound, call, lost)
    refused(DataIdentifierNotFound, c.get_locks_for_dids, [{**lost[0], "type": "dataset"}])
    refused(DataIdentifierNotFound, c.set_metadata, "user.alice", "nowhere", "project", "x")
    refused(DataIdentifierNotFound, c.set_status, "user.alice", "nowhere", open=False)
    refused(exception.UnsupportedStatus, c.set_status, "user.alice", "ds1", nonsense=1)
    refused(DataIdentifierNotFound, c.detach_dids, "user.alice", "ds1", lost)
    for call in [c.get_replication_rule, c.list_replica_locks, c.examine_replication_rule, c.delete_replication_rule,
                 c.approve_replication_rule, c.deny_replication_rule]:
        refused(RuleNotFound, call, "0" * 32)
    for call in [c.get_rse, c.list_rse_attributes, c.get_rse_limits, c.get_protocols, c.delete_rse,
                 c.get_dataset_locks_by_rse, c.list_datasets_per_rse, c.list_rse_usage_history]:
        refused(RSENotFound, call, "NOWHERE")
    for call in [c.get_account, c.list_account_rules, c.list_account_attributes, c.list_identities, c.get_local_account_limits, c.get_local_account_usage, c.delete_account]:
        refused(AccountNotFound, call, "nobody")
    for call in [c.get_local_account_limit, c.get_local_account_usage]:
        refused(RSENotFound, call, "alice", "NOWHERE")
    refused(InvalidRSEExpression, c.get_global_account_usage, "alice", "((")
    refused(InvalidRSEExpression, c.set_global_account_limit, "alice", "((", 1)
    for name in ["né", "two words", "x" * 260, "../up", "a%2Fb", ""]:
        refused((InvalidObject, UnsupportedOperation), c.add_dataset, "user.alice", name)
    refused(InvalidObject, c.list_replication_rules, {"state": "X"})
    refused(InvalidObject, c.list_replication_rules, {"created_before": "yesterday"})
    refused(UnsupportedOperation, c.list_dids, "user.alice", {}, did_type="nonsense")
    assert list(c.list_dids("nowhere", {})) == [] and list(c.list_dids("user.alice", {"name": "nothing*"})) == []
    assert list(c.list_replicas([])) == [] and list(c.list_requests(None, None, ["X"])) == []
    # Two ways to the same files, and how they are ranked.
    c.add_protocol("SITE-B", {"scheme": "davs", "hostname": "b.example.org", "port": 443, "prefix": "/b",
                              "domains": {"wan": {"read": 2, "write": 2, "delete": 2}, "lan": {}}})
    ranks = lambda: {one["scheme"]: one["domains"]["wan"]["read"] for one in c.get_rse("SITE-B")["protocols"]}
    assert ranks() == {"file": 1, "davs": 2}
    # It asks for one of the two only, and so never finds the other; with Rucio's server too.
    assert c.swap_protocols("SITE-B", "wan", "read", "file", "davs") is False
    refused(RSENotFound, c.swap_protocols, "NOWHERE", "wan", "read", "file", "davs")
    for scheme, rank in [("davs", 1), ("file", 2)]:
        c.update_protocols("SITE-B", scheme, {"domains": {"wan": {"read": rank}}})
    assert ranks() == {"file": 2, "davs": 1}
    refused(RSEProtocolNotSupported, c.update_protocols, "SITE-B", "gsiftp", {})
    refused(RSEProtocolNotSupported, c.get_protocols, "SITE-B", scheme="gsiftp")
    c.update_protocols("SITE-B", "file", {"domains": {"wan": {"read": 1}}})
    c.delete_protocols("SITE-B", "davs", hostname="b.example.org", port=443)
    assert ranks() == {"file": 1}
    # Bad by its physical name.
    c.add_replica("SITE-A", "user.alice", "rotten", 5, "00000001")
    (found,) = c.list_replicas([{"scope": "user.alice", "name": "rotten"}])
    (physical,) = found["pfns"]
    refused(RSENotFound, c.get_did_from_pfns, [physical], "NOWHERE")
    assert list(c.get_did_from_pfns([physical], "SITE-B")) == []
    refused(UnsupportedOperation, c.add_bad_pfns, [physical], "odd", "TEMPORARY_UNAVAILABLE", None)
    refused(InvalidObject, c.add_bad_pfns, [physical], "odd", "NONSENSE", None)
    (suspects,) = c.declare_suspicious_file_replicas([physical, "file://localhost:0/nobody/knows"], "odd").values()
    assert suspects == ["file://localhost:0/nobody/knows Unknown replica"], suspects
    assert c.add_bad_pfns([physical], "odd again", "SUSPICIOUS", None) is True
    (suspect,) = c.list_suspicious_replicas()
    assert (suspect["name"], suspect["rse"], suspect["cnt"], suspect["reason"]) == ("rotten", "SITE-A", 2, "odd again")
    assert list(c.list_suspicious_replicas(rse_expression="SITE-A", younger_than="2020-01-01", nattempts=2)) == [suspect]
    for none in [{"rse_expression": "SITE-B"}, {"younger_than": "2999-01-01"}, {"nattempts": 3}]:
        assert list(c.list_suspicious_replicas(**none)) == [], none
    refused(InvalidRSEExpression, c.list_suspicious_replicas, rse_expression="A=(")
    refused(UnsupportedOperation, c.quarantine_replicas, [{"path": "/x"}], rse="SITE-A")
    assert c.add_bad_pfns([physical, "file://localhost:0/nobody/knows"], "unreadable", "BAD", None) is True
    assert list(c.list_suspicious_replicas()) == []
    refused(DataIdentifierNotFound, c.delete_replicas, "SITE-A", lost)
    refused(InvalidObject, c.add_replica, "SITE-A", "user.alice", "negative", -1, "00000001")
    refused(InvalidObject, c.add_replica, "SITE-A", "user.alice", "nohex", 1, "zz")
    refused(ScopeNotFound, c.add_replica, "SITE-A", "nowhere", "f", 1, "00000001")
    assert c.add_datasets_to_containers([{"scope": "user.alice", "name": "c3", "dids": here}]) is True
    c.add_container("user.alice", "c4")
    assert c.add_containers_to_containers([{"scope": "user.alice", "name": "c4", "dids": [{"scope": "user.alice", "name": "c3"}]}]) is True
    refused(UnsupportedOperation, c.add_containers_to_containers,
            [{"scope": "user.alice", "name": "c3", "dids": [{"scope": "user.alice", "name": "c4"}]}])
    # What is not kept here says so, and never by an unknown error.
    rules = [{"copies": 1, "rse_expression": "SITE-A", "activity": "User Subscriptions"}]
    refused(UnsupportedOperation, c.add_subscription, "s", "root", {"scope": ["user.alice"]}, rules, "", False, False, False)
    refused(UnsupportedOperation, c.list_archive_content, "user.alice", "f0")


def trust(c):
    alice = Client(account="alice", auth_type="userpass", creds={"username": "alice", "password": "a long word"})
    assert alice.whoami()["account"] == "alice"
    refused(AccessDenied, alice.add_account, "eve", "USER", "e@example.org")
    refused(AccessDenied, alice.add_rse, "SITE-E")
    refused(AccessDenied, alice.set_local_account_limit, "alice", "SITE-A", 1)
    refused(AccessDenied, alice.add_replication_rule, [{"scope": "user.alice", "name": "ds3"}], 1, "SITE-A", account="root")
    c.add_scope("root", "ops")
    refused(AccessDenied, alice.add_dataset, "ops", "x")
    alice.add_dataset("user.alice", "own")
    (own,) = alice.add_replication_rule([{"scope": "user.alice", "name": "own"}], 1, "SITE-A")
    assert alice.get_replication_rule(own)["account"] == "alice"
    alice.update_replication_rule(own, {"comment": "mine"})
    alice.delete_replication_rule(own)
    for account, password in [("alice", "wrong"), ("root", "a long word")]:
        forget_tokens()
        refused(CannotAuthenticate, Client, account=account, auth_type="userpass",
                creds={"username": "alice", "password": password})
    forged = Client(account="alice", auth_type="userpass", creds={"username": "alice", "password": "a long word"})
    forged.auth_token = "root-root-unknown-" + "0" * 64
    forged.headers["X-Rucio-Auth-Token"] = forged.auth_token
    # A token nobody gave is worth nothing: the client logs in again, as who it is.
    assert forged.whoami()["account"] == "alice"
    for headers, status in [({}, 400), ({"X-Rucio-Auth-Token": "root-root-unknown-" + "0" * 64}, 401),
                            ({"Authorization": "Bearer wrong"}, 401)]:
        answer = c.session.get(f"{c.host}/rules/", headers=headers, verify=c.ca_cert)
        assert (answer.status_code, answer.json()["ExceptionClass"]) == (status, "CannotAuthenticate"), answer.text
    for method, path, status in [("GET", "/", 404), ("GET", "/nothing", 404), ("POST", "/ping", 405), ("PATCH", "/rules/", 405)]:
        answer = c.session.request(method, f"{c.host}{path}", headers=c.headers, verify=c.ca_cert)
        assert (answer.status_code, answer.json()["ExceptionClass"]) == (status, "UnsupportedOperation"), answer.text
    c.del_identity("alice", "alice", "USERPASS")
    refused(CannotAuthenticate, forged.whoami)


def command(c):
    assert "41.5.1" in rucio("ping")
    assert "root" in rucio("whoami")
    assert "SITE-A" in rucio("rse", "list")
    assert "user.alice:ds1" in rucio("did", "list", "user.alice:ds*")
    assert "ds1" in rucio("did", "show", "user.alice:ds1")
    assert "f0" in rucio("did", "content", "list", "user.alice:ds1")
    assert "project" in rucio("did", "metadata", "list", "user.alice:ds1")
    assert "SITE-A" in rucio("replica", "list", "file", "user.alice:ds1")
    listed = rucio("rule", "list", "--did", "user.alice:ds1")
    assert "SITE-A" in listed, listed
    listed = rucio("did", "list", "--filter", "type=file", "user.alice:*")
    assert "user.alice:f0" in listed and "user.alice:ds1" not in listed, listed
    assert "user.alice" not in rucio("did", "list", "--filter", "type=container", "user.alice:ds*")
    assert "SCOPE:NAME" in rucio("did", "list", "user.alice:nothing*")
    assert "SCOPE:NAME" in rucio("did", "content", "list", "user.alice:files")
    assert "N/A" not in rucio("rule", "list", "--did", "user.alice:files")
    for said, words in [
        ("Data identifier not found", ["did", "show", "user.alice:né"]),
        ("Data identifier not found", ["did", "content", "list", "user.alice:" + "x" * 500]),
        ("Data identifier not found", ["rule", "list", "--did", "user.alice:nowhere"]),
        ("Data identifier not found", ["rule", "add", "user.alice:nowhere", "--copies", "1", "--rses", "SITE-A"]),
        ("RSE expression is considered invalid", ["rule", "add", "user.alice:ds1", "--copies", "1", "--rses", "NOWHERE"]),
        ("RSE expression is considered invalid", ["rse", "list", "--rses", "tier=99"]),
        ("does not match schema", ["did", "add", "user.alice:né", "--type", "dataset"]),
        ("Already Exists", ["did", "add", "user.alice:ds1", "--type", "dataset"]),
        ("RSE does not exist", ["rse", "show", "NOWHERE"]),
        ("Account does not exist", ["account", "limit", "list", "nobody"]),
        ("No replication rule found", ["rule", "remove", "0" * 32]),
    ]:
        answer = rucio(*words, code=1)
        assert said in answer, (words, answer)
    c.update_scope("root", "given")
    alice = ["--account", "alice", "--auth-strategy", "userpass", "--user", "alice", "--password", "a long word"]
    for words in [["rse", "add", "SITE-X"], ["did", "add", "given:x", "--type", "dataset"],
                  ["rule", "add", "user.alice:ds3", "--copies", "1", "--rses", "SITE-A", "--account", "root"]]:
        answer = rucio(*alice, *words, code=1)
        assert "Access to the requested resource denied" in answer, (words, answer)
    rucio("did", "show", "user.alice:nothing", code=1)
    rucio("rule", "show", "0" * 32, code=1)
    assert [one["account"] for one in c.list_accounts(filters={"account": "al*"})] == ["alice"]
    assert list(c.list_datasets_per_rse("SITE-A"))[0]["scope"] == "user.alice"
    assert list(c.list_rse_usage_history("SITE-A")) == []
    assert list(c.get_account_usage_history("alice", "SITE-A")) == []


def files(c):
    """Upload and download with the client's own protocols, through the physical names we give."""
    path = os.path.join(FOLDER, "letter.txt")
    with open(path, "w") as file:
        file.write("dear reader\n" * 1000)
    c.set_local_account_limit("root", "SITE-A", -1)
    rucio("upload", "--rse", "SITE-A", "--scope", "user.alice", path)
    (found,) = c.list_replicas([{"scope": "user.alice", "name": "letter.txt"}])
    assert found["bytes"] == 12000 and found["states"] == {"SITE-A": "AVAILABLE"}, found
    assert os.path.exists(list(found["pfns"])[0].split(":0", 1)[1])
    into = os.path.join(FOLDER, "in")
    rucio("download", "--dir", into, "user.alice:letter.txt")
    with open(os.path.join(into, "user.alice", "letter.txt")) as file:
        assert file.read() == "dear reader\n" * 1000
    # Somebody without privileges uploads what is hers, and of nothing else she can say that it is there.
    c.set_local_account_limit("alice", "SITE-A", -1)
    with open(os.environ["RUCIO_CONFIG"]) as file:
        lines = [line for line in file if not line.startswith(("account", "username", "password"))]
    own = os.path.join(FOLDER, "alice.cfg")
    with open(own, "w") as file:
        for line in lines:
            file.write(line)
            if line.strip() == "[client]":
                file.write("account = alice\nusername = alice\npassword = a long word\n")
    hers = os.path.join(FOLDER, "hers.txt")
    with open(hers, "w") as file:
        file.write("mine\n")
    rucio("--config", own, "upload", "--rse", "SITE-A", "--scope", "user.alice", hers)
    (found,) = c.list_replicas([{"scope": "user.alice", "name": "hers.txt"}])
    assert found["states"] == {"SITE-A": "AVAILABLE"}, found
    (rule,) = c.list_did_rules("user.alice", "hers.txt")
    assert (rule["state"], rule["account"]) == ("OK", "alice"), rule


def main():
    c = Client()
    for part in [accounts, sites, quotas, names, replicas, rules, strays, command, files, trust]:
        part(c)
        print(part.__name__, "is well", flush=True)
    print("all is well")


main()
