# Installs headers, libraries and the package files that make find_package(ashlar) work.
include(CMakePackageConfigHelpers)

install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/ashlar DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(TARGETS ashlar ashlar_testing EXPORT ashlarTargets
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(EXPORT ashlarTargets NAMESPACE ashlar:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/ashlar)
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/ashlarConfig.cmake.in ${CMAKE_BINARY_DIR}/ashlarConfig.cmake
  INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/ashlar)
write_basic_package_version_file(${CMAKE_BINARY_DIR}/ashlarConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/ashlarConfig.cmake ${CMAKE_BINARY_DIR}/ashlarConfigVersion.cmake
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/ashlar)
