"""Which tests hold over every database: those of keys, teams, tokens and the audit."""

import pytest

CONTRACT = {
    "test_alert_repo",
    "test_audit",
    "test_batch_repo",
    "test_deployment_repo",
    "test_key_changes",
    "test_key_repo",
    "test_matrix_repo",
    "test_migration_cache_writes",
    "test_migration_costs",
    "test_migration_labels",
    "test_registry_repo",
    "test_signal_repo",
    "test_writers_at_once",
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if metafunc.module.__name__ in CONTRACT:
        metafunc.fixturenames.insert(0, "store")
        metafunc.parametrize("store", ["sqlite", "postgresql"], indirect=True, scope="module")
